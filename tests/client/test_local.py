"""What the command line does with torch, on the user's side, with real weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from grasp_cli.main import cli
from grasp_core import (
    Checkpoint,
    CheckpointInfo,
    FoldReport,
    ModelSpec,
    make_manifest,
    resolve_preprocessing,
    write_checkpoint,
)
from grasp_core.report import Environment, Metrics, MetricsReport, SplitMetrics
from registry.models import record_preparation
from registry.tables import utc_now
from registry.versions import FoldResult, publish
from tests.app.world import CLASSES, ROOT, Server, World
from tests.configs import grasp_alone

SPEC = ModelSpec(architecture="test_resnet", classes=CLASSES)
SCORE = Metrics(
    count=50,
    accuracy=0.71,
    per_class_accuracy={},
    per_class_count={},
    precision=0.5,
    recall=0.5,
    f1=0.5,
    auroc=None,
    log_likelihood=-0.5,
    confusion_matrix=[],
)


@pytest.fixture
def model(world: World, server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prepared model that timm knows."""
    monkeypatch.setenv("GRASP_URL", server.url)
    world.ready_target()
    world.post_model("merged", architecture=SPEC.architecture)
    manifest = make_manifest(SPEC).model_dump(mode="json")
    lease = world.claim()
    with world.database.write() as session:
        record_preparation(session, lease, CLASSES, manifest, utc_now())
    return "merged"


def weights(classes: int = 2) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return timm.create_model(SPEC.architecture, num_classes=classes).state_dict()


def invoke(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


@pytest.mark.parametrize("suffix", ["pt", "pth", "ckpt", "bin"])
def test_a_trainers_checkpoint_is_converted_before_it_is_sent(
    world: World, model: str, suffix: str
) -> None:
    torch.save(
        {"state_dict": {f"model.{k}": v for k, v in weights().items()}, "epoch": 3}, f"a.{suffix}"
    )

    result = invoke("push", model, f"a.{suffix}", "--json")

    assert result.exit_code == 0, result.output
    source = json.loads(result.stdout)
    assert source["name"] == f"a.{suffix}"
    sent = Checkpoint(world.store.fetch(source["sha256"]))
    assert sent.info.architecture == SPEC.architecture
    assert all(torch.equal(sent[name], tensor) for name, tensor in weights().items())


def test_the_same_weights_are_not_sent_as_another_source(world: World, model: str) -> None:
    save_file(weights(), "a.safetensors")
    torch.save({"state_dict": weights(), "epoch": 3}, "a.pth")

    first = json.loads(invoke("push", model, "a.safetensors", "--json").stdout)
    world.reject()
    second = invoke("push", model, "a.pth")

    assert second.exit_code == 0, second.output
    assert "a.pth was offered before, and not again\n" in second.stderr
    sources = world.client.get("/sources").json()["items"]
    assert [(each["id"], each["name"]) for each in sources] == [(first["id"], "a.safetensors")]


def test_other_classes_are_given_by_name(world: World, model: str) -> None:
    torch.save(weights(classes=3), "a.pt")

    assert "--classes" in invoke("push", model, "a.pt").stderr
    result = invoke("push", model, "a.pt", "--classes", "M,F,X", "--json")

    assert json.loads(result.stdout)["classes"] == ["M", "F", "X"]


def test_a_checkpoint_of_another_model_is_not_even_sent(world: World, model: str) -> None:
    torch.save({f"other.{k}": v for k, v in weights().items()}, "a.pt")

    with world.nothing_left():
        result = invoke("push", model, "a.pt")

    assert result.exit_code == 1
    assert result.stderr.startswith(
        "converting a.pt\ngrasp: a.pt is not a test_resnet checkpoint\n"
    )
    assert " more\n" in result.stderr


def test_a_file_that_is_no_checkpoint(world: World, model: str) -> None:
    Path("a.pt").write_text("no weights")

    result = invoke("push", model, "a.pt")

    assert result.exit_code == 1
    assert "grasp: a.pt is not a torch checkpoint\n" in result.stderr


def test_without_torch_it_says_what_to_install(world: World, model: str) -> None:
    torch.save(weights(), "a.pt")
    code = "import sys; sys.modules['torch'] = None; from grasp_cli.main import main; main()"

    result = subprocess.run(
        [sys.executable, "-c", code, "push", model, "a.pt"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )

    assert result.returncode == 1
    assert "grasp: converting needs torch, which is not installed here\n" in result.stderr
    assert "py3-none-any.whl[torch]'`" in result.stderr


def test_a_model_is_pulled_as_a_folder_that_timm_loads(world: World, model: str) -> None:
    fold_by_hand(world, weights())

    result = invoke("pull", model, "out", "--timm")

    assert (result.exit_code, result.stdout) == (0, "out\n")
    loaded = timm.create_model("local-dir:out", pretrained=True).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights().items())
    card = Path("out/README.md").read_text()
    assert "# merged" in card
    assert "0.7100" in card


def fold_by_hand(world: World, tensors: dict[str, torch.Tensor]) -> None:
    """Offer them, and publish them as they are, with a report."""
    info = CheckpointInfo(
        architecture=SPEC.architecture, classes=CLASSES, preprocessing=resolve_preprocessing(SPEC)
    )
    sha256 = write_checkpoint("version", tensors, info)
    assert world.post_source(Path("version").read_bytes()).status_code == 202
    lease = world.claim()
    with world.store.create() as writer:
        writer.write(Path("version").read_bytes())
        blob = writer.commit()
    result = FoldResult(None, report(sha256).to_json(), {}, {"weights": blob})
    with world.database.write() as session:
        publish(session, lease, result, utc_now())


def report(sha256: str) -> FoldReport:
    return FoldReport(
        outcome="accepted",
        spec=SPEC.model_dump(mode="json"),
        config=grasp_alone().model_dump(mode="json"),
        seed=0,
        version=1,
        parent=None,
        source="b" * 64,
        sha256=sha256,
        metrics=MetricsReport(before=None, after=SplitMetrics(val=SCORE, test=SCORE)),
        environment=Environment(python="3", libraries={}, device="cpu", threads=1, autocast=None),
    )
