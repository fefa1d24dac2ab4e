"""Packages with methods and kinds are looked for when needed, and may be broken."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grasp_core.kinds import KINDS
from grasp_core.methods import METHODS
from registry.tables import Model
from tests.app.reading import page
from tests.app.world import World

ROOT = Path(__file__).parents[2]
IMPORTS = """
from grasp_core import plugins

def refuse(**_):
    raise AssertionError("packages were looked for while ours are imported")

plugins.entry_points = refuse
import app.main, app.serve
import worker.main, worker.loop, worker.jobs, worker.child, worker.child_process
print("done")
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package that should bring a method and a kind, and does not."""
    about = tmp_path / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    points = "[grasp.methods]\necho = broken:A\n[grasp.kinds]\nsound = broken:B\n"
    (about / "entry_points.txt").write_text(points)
    (tmp_path / "broken.py").write_text("raise RuntimeError('no licence')")
    monkeypatch.syspath_prepend(tmp_path)
    METHODS.forget()
    KINDS.forget()
    with pytest.warns(RuntimeWarning, match="'echo' of broken cannot be loaded"):
        assert "echo" not in METHODS
    with pytest.warns(RuntimeWarning, match="'sound' of broken cannot be loaded"):
        assert "sound" not in KINDS
    yield
    METHODS.forget()
    KINDS.forget()


def test_importing_api_and_worker_looks_for_no_package(no_settings: None, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS],
        env={"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == "done\n", done.stderr


def test_a_schema_of_the_core_needs_no_kind() -> None:
    code = (
        "import sys; from grasp_core.config import RefineConfig; RefineConfig.model_json_schema();"
        "print('grasp_core.kinds' in sys.modules)"
    )

    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    assert found.strip() == "False"


@pytest.mark.usefixtures("broken")
def test_the_api_serves_what_it_has(world: World) -> None:
    world.ready_model()
    world.fold(1)

    document = world.client.get("/openapi.json").json()
    pages = [page(world, path) for path in ("/", "/ui/models/merged", "/ui/jobs")]

    assert "GraspConfig" in document["components"]["schemas"]
    assert not any("sound" in text for text in pages)
    model = {
        "name": "new",
        "architecture": "test_vit",
        "target": "faces",
        "merge": {"method": "echo"},
    }
    (problem,) = world.client.post("/models", json=model).json()["errors"]
    assert problem["where"] == "body.merge.method"
    assert problem["message"].startswith("'echo' of broken cannot be loaded: RuntimeError: no lice")
    refused = world.client.post("/targets?name=hum&kind=sound", content=b"PK")
    assert refused.status_code == 422
    assert "repair or uninstall broken" in refused.text


@pytest.mark.usefixtures("broken")
def test_a_model_whose_method_broke_is_shown_and_can_be_given_another(world: World) -> None:
    world.ready_model()
    with world.database.write() as session:
        row = session.query(Model).one()
        row.merge = row.merge | {"method": "echo", "times": 3}

    assert world.client.get("/models/merged/info").json()["merge"]["times"] == 3
    assert "merged" in page(world, "/ui/models/merged")
    answer = world.client.patch("/models/merged", json={"merge": {"method": "grasp"}})
    assert (answer.status_code, answer.json()["merge"]["method"]) == (200, "grasp")
