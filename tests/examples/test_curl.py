"""The example for curl, on a live server whose folds are played."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.app.world import Server, World, checkpoint
from tests.client.conftest import migrated as migrated
from tests.client.conftest import server as server
from tests.client.conftest import world as world
from tests.client.hand import working

SCRIPT = Path(__file__).parents[2] / "examples" / "merge.sh"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_merging_with_curl(server: Server, world: World, tmp_path: Path) -> None:
    (tmp_path / "target.zip").write_bytes(b"PK: played, too")
    for seed, name in enumerate(("good", "bad")):
        (tmp_path / f"{name}.safetensors").write_bytes(checkpoint(seed))
    bearer = world.key("ada", "write")["Authorization"]
    variables = {"GRASP_URL": server.url, "GRASP_KEY": bearer.split()[1], "no_proxy": "127.0.0.1"}

    with working(world):
        done = subprocess.run(
            [SCRIPT, "scans", "target.zip", "good.safetensors", "bad.safetensors"],
            env=os.environ | variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "good.safetensors: succeeded",
        "bad.safetensors: rejected",
        "scans-v1.safetensors",
    ]
    assert (tmp_path / "scans-v1.safetensors").read_bytes() == checkpoint(1000)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_what_the_server_refuses_ends_it(server: Server, world: World, tmp_path: Path) -> None:
    (tmp_path / "target.zip").write_bytes(b"PK: played, too")

    done = subprocess.run(
        [SCRIPT, "no such name", "target.zip"],
        env=os.environ | {"GRASP_URL": server.url, "no_proxy": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 1
    assert '"code":"invalid_request"' in done.stderr
