"""The examples and the notebook, run as they are on a real service."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import nbformat
import pytest
from nbclient import NotebookClient

from examples import merge, pipeline
from grasp_cli.demo.experiment import QUICK, Experiment
from grasp_core import Checkpoint
from tests.serving import PATIENCE_S, serving

pytestmark = pytest.mark.proof
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serving(tmp_path_factory.mktemp("service")) as (client, _):
        yield client


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A target and a source."""
    folder = tmp_path_factory.mktemp("files")
    experiment = Experiment(folder, folder, sizes=QUICK)
    return [experiment.target, experiment.train_source("1970s", experiment.train_ancestor())]


@pytest.fixture
def environment(client: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the service is, and an empty folder."""
    monkeypatch.setenv("GRASP_URL", str(client.base_url))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("environment")
def test_merging_with_the_client(files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    merge.main("by-client", *map(str, files))

    *_, said, downloaded = capsys.readouterr().out.splitlines()
    assert re.search(r"1970s\.safetensors: version 1, validation accuracy [01]\.\d{3}$", said)
    assert downloaded == "by-client-v1.safetensors"
    assert Checkpoint(downloaded).info.lineage.version == 1


@pytest.mark.usefixtures("environment")
def test_a_pipeline_goes_on_where_it_was(
    client: httpx.Client,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = {month: pipeline.MONTHS[month] for month in ("january", "march")}
    monkeypatch.setattr(pipeline, "MONTHS", some)
    monkeypatch.setattr(pipeline, "MONTHLY", 60)
    monkeypatch.setattr(pipeline, "EPOCHS", 1)
    caplog.set_level(logging.INFO, logger="pipeline")

    pipeline.main(tmp_path)

    january, march = caplog.messages
    assert january.startswith("january is in version 1, validation accuracy ")
    assert re.match("march was rejected: the source('s root mean square| has values)", march)
    info = client.get("/models/monthly/info").json()
    assert info["sources"] == {"succeeded": 1, "rejected": 1}

    caplog.clear()
    pipeline.main(tmp_path)

    assert caplog.messages == [january, march]
    assert client.get("/models/monthly/info").json() == info


@pytest.fixture
def notebook() -> Any:
    return nbformat.read(EXAMPLES / "merge.ipynb", as_version=4)  # type: ignore[no-untyped-call]


@pytest.mark.usefixtures("environment")
def test_the_notebook_runs(notebook: Any, client: httpx.Client, tmp_path: Path) -> None:
    parameters = notebook.cells[1]
    assert re.findall(r"^\w+", parameters.source, re.MULTILINE) == ["SEED", "ARRIVING", "QUICK"]
    parameters.source = 'SEED, ARRIVING, QUICK = 0, ["1970s", "1980s"], True'

    NotebookClient(
        notebook, timeout=PATIENCE_S, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()

    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    drawings = [o.data["image/svg+xml"] for o in outputs if "image/svg+xml" in o.get("data", {})]
    plot, provenance = drawings
    assert "v1 1970s" in plot
    assert "conv_stem.weight" in provenance
    [page] = re.findall(r"http://\S+/ui/models/\S+", outputs[-1].text)
    assert client.get(page).status_code == 200


def test_the_notebook_is_kept_without_outputs(notebook: Any) -> None:
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]

    assert code
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
