"""What `grasp demo` promises, with the digits and epochs that it really takes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grasp_cli.main import cli
from tests.proofs.forms import LONG
from tests.serving import serving

pytestmark = [*LONG]


@pytest.mark.parametrize("seed", range(5))
def test_the_merged_model_is_better_than_any_source(seed: int, tmp_path: Path) -> None:
    with serving(tmp_path) as (client, _):
        words = ["demo", "--seed", str(seed), "--url", str(client.base_url), "--json"]
        result = CliRunner().invoke(cli, words)

    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["merged"] > max(source["alone"] for source in printed["sources"])
    assert printed["merged"] > printed["fine_tuned_ancestor"]
