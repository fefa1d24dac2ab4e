"""What `grasp demo` promises, with the digits and epochs that it really takes."""

import json
from pathlib import Path
from statistics import fmean

from typer.testing import CliRunner

from grasp_cli.main import cli
from tests.proofs.forms import LONG
from tests.serving import serving

pytestmark = [*LONG]


def test_the_merged_model_is_better_than_the_ancestor_and_than_any_source_as_it_came(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as (client, _):
        words = ["demo", "--seeds", "5", "--url", str(client.base_url), "--json"]
        result = CliRunner().invoke(cli, words)

    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["merged"] > max(source["alone"] for source in printed["sources"])
    figures = {
        name: fmean(seed[name] for seed in printed["seeds"]) for name in ("merged", "ancestor")
    }
    assert figures["merged"] > figures["ancestor"]
