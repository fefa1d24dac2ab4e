"""`grasp merge` and `grasp convert`, with real weights and images, and no server."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from grasp_cli.main import cli
from grasp_core import Checkpoint, CheckpointInfo, convert_checkpoint, write_checkpoint
from grasp_core.files import sha256_file
from grasp_core.methods import METHODS
from grasp_core.operations import Folded, FoldSource, ValidateTarget
from grasp_core.parameters import parse_config
from tests.core.shadow import SHADOW
from tests.processes import IGNORING_INTERRUPTS, running
from tests.worker.digits import CLASSES, SPEC, Heard, write_target, write_weights

PARAMETERS: dict[str, Any] = {
    "method": "grasp",
    "alignment_batches": 2,
    "refine": {"epochs": 1, "lr": 1e-3, "batch_size": 16},
    "gate": {"max_drop": 1.0},  # weights that were never trained: nothing to lose
}
MODEL = ("-a", SPEC.architecture, "--image-size", "32", "--preprocess", "crop_pct=1.0")
BRIEF = ("--set", "refine.epochs=0", "--set", "alignment_batch_size=4")
JSON = ("a.safetensors", "--json", "--set", "refine.epochs=0")
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, and three sources: of timm's own weights, of a trainer, and far out of range."""
    folder = tmp_path_factory.mktemp("files")
    write_target(folder / "target", per_class=20)
    write_weights(folder / "a.safetensors", seed=1)
    other = timm.create_model(SPEC.architecture, num_classes=len(CLASSES)).state_dict()
    torch.save(
        {"state_dict": {f"model.{k}": v for k, v in other.items()}, "epoch": 3}, folder / "b.pt"
    )
    wild = {k: v * 1e6 if k == "conv_stem.weight" else v for k, v in other.items()}
    write_checkpoint(folder / "wild.safetensors", wild, CheckpointInfo())
    (folder / "merge.json").write_text(json.dumps(PARAMETERS))
    return folder


@pytest.fixture
def run(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`grasp merge` of some of the files, in an empty folder."""
    monkeypatch.setenv("HOME", str(files))  # where decoded targets are kept
    monkeypatch.chdir(tmp_path)

    def run(*words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, ["merge", *arguments(files, *words)])
        assert result.exit_code == code, result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return run


def arguments(files: Path, *words: str) -> list[str]:
    named = [str(files / word) if (files / word).is_file() else word for word in words]
    target, config = str(files / "target"), str(files / "merge.json")
    return ["-t", target, *MODEL, "--config", config, "--device", "cpu", "-o", "out", *named]


def unframed(text: str) -> str:
    """What was typed wrongly is said in a box, and broken into lines."""
    return " ".join(text.replace("│", " ").split())


def fold_as_the_worker(
    files: Path, folder: Path, sources: list[Path], parameters: dict[str, Any] = PARAMETERS
) -> list[Folded]:
    fingerprint = (
        ValidateTarget({"target": files / "target"}, folder / "cache").run(Heard()).fingerprint
    )
    merged: dict[str, Path] = {}
    folds = []
    for number, source in enumerate(sources, start=1):
        operation = FoldSource(
            spec=SPEC,
            config=parse_config(parameters | {"device": "cpu"}),
            version=number,
            source_sha256=sha256_file(source),
            source_classes=None,
            target_fingerprint=fingerprint,
            cache_dir=folder / "cache",
            work_dir=folder / str(number),
            output=folder / f"v{number}",
            files={"target": files / "target", "source": source, **merged},
        )
        folds.append(operation.run(Heard()))
        merged = {file.name: operation.output / file.name for file in folds[-1].files}
    return folds


def test_what_a_method_remembers_goes_beside_the_output(
    files: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "shadow", SHADOW)
    shadow = ("--base", "a.safetensors", "--set", "method=shadow")

    run("a.safetensors", "b.pt", *shadow)
    state = Path("out-state-shadow.safetensors")
    whole = Path("out").read_bytes(), state.read_bytes()
    run("a.safetensors", *shadow)
    Path("out").rename("first")
    state.rename("remembered")
    run("b.pt", "--merged", "first", "--file", "state/shadow=remembered", *shadow)

    assert (Path("out").read_bytes(), state.read_bytes()) == whole
    assert int(Checkpoint(state)["count"]) == 2
    assert sorted(path.name for path in Path().iterdir()) == [
        "first",
        "out",
        "out-state-shadow.safetensors",
        "remembered",
    ]


def test_a_method_without_its_base_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "shadow", SHADOW)

    said = run("a.safetensors", "--set", "method=shadow", code=1).stderr

    assert "shadow needs a base" in unframed(said)
    assert "tau: shadow has no such parameter; it is one of grasp" in unframed(
        run("a.safetensors", "--set", "method=shadow", "--set", "tau=0.1", code=2).stderr
    )


def untimed(metrics: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from run to run."""
    cost = {"seconds": None, "peak_bytes": None}
    return {**metrics, "candidates": [each | cost for each in metrics["candidates"]]}


def test_it_ends_in_the_bytes_of_the_service(files: Path, tmp_path: Path, run: Run) -> None:
    """As pushed: the trainer's file converted on the way, with the model's description."""
    aside = tmp_path / "aside"
    convert_checkpoint(files / "b.pt", aside / "b.safetensors", spec=SPEC)
    first, second = fold_as_the_worker(
        files, aside, [files / "a.safetensors", aside / "b.safetensors"]
    )

    result = json.loads(run("a.safetensors", "b.pt", "--json").stdout)

    assert result["sha256"] == second.sha256 == sha256_file(Path("out"))
    assert (result["path"], result["version"]) == ("out", 2)
    assert [source["status"] for source in result["sources"]] == ["accepted", "accepted"]
    printed = [
        {**source["metrics"], "transferred_share": source["transferred_share"]}
        for source in result["sources"]
    ]
    wanted = [folded.metrics.model_dump(mode="json") for folded in (first, second)]
    assert [untimed(each) for each in printed] == [untimed(each) for each in wanted]
    assert sorted(path.name for path in Path().iterdir()) == ["aside", "out"]


def test_candidates_run_as_in_the_service(files: Path, tmp_path: Path, run: Run) -> None:
    """With what they remember, whoever wins."""
    aside = tmp_path / "aside"
    convert_checkpoint(files / "b.pt", aside / "b.safetensors", spec=SPEC)
    default = {name: value for name, value in PARAMETERS.items() if name != "method"}
    (tmp_path / "default.json").write_text(json.dumps(default))
    sources = [files / "a.safetensors", aside / "b.safetensors"]
    _, second = fold_as_the_worker(files, aside, sources, default)

    result = run("a.safetensors", "b.pt", "--config", "default.json", "--report", "report.json")

    assert sha256_file(Path("out")) == second.sha256
    state = sha256_file(Path("out-state-mean.safetensors"))
    assert state == {file.name: file.sha256 for file in second.files}["state/mean"]
    assert f"b.pt: {second.metrics.sentence}\n" in result.stdout
    newest = json.loads(Path("report.json").read_text())["reports"][-1]
    assert [each["name"] for each in newest["candidates"]] == ["keep", "source", "mean", "grasp"]


def test_all_methods_are_compared_in_one_table(files: Path, run: Run) -> None:
    result = run("a.safetensors", "--candidates", "all", "--base", "a.safetensors", *BRIEF)

    rows = {line.split()[0]: line for line in result.stdout.splitlines() if line.split()}
    assert {"candidate", *METHODS} <= set(rows)
    assert "log-likelihood" in rows["candidate"]
    measured = rows["source"].split()
    assert measured[1] in ("won", "lost")
    assert measured[3] == "±"
    assert " s " in rows["source"]
    assert re.search(r"\d [MG]B", rows["source"])  # of a process that may hold much else
    assert "opcm" in rows  # whose history begins with a first source
    said = json.loads(run(*JSON, "--candidates", "keep,mean", "--base", "a.safetensors").stdout)
    [source] = said["sources"]
    assert [each["name"] for each in source["metrics"]["candidates"]] == ["keep", "mean"]
    assert all(each["test_accuracy"] is not None for each in source["metrics"]["candidates"])


@pytest.mark.parametrize(
    ("text", "said"), [("keep,tyes", "there is no such method"), ("[1", "there is no such method")]
)
def test_candidates_that_make_no_sense_are_named(run: Run, text: str, said: str) -> None:
    result = run("a.safetensors", "--candidates", text, code=2)
    assert "--candidates" in result.output
    assert said in " ".join(result.output.replace("│", " ").split())


def test_a_version_is_gone_on_with_in_place(files: Path, run: Run) -> None:
    whole = json.loads(run("a.safetensors", "b.pt", "--json").stdout)
    run("a.safetensors")

    later = json.loads(run("b.pt", "--merged", "out", "--json").stdout)

    assert (later["version"], later["sha256"]) == (2, whole["sha256"])


def test_the_number_of_a_version_may_be_another_than_its_file_says(run: Run) -> None:
    run("a.safetensors")

    later = json.loads(run("b.pt", "--merged", "out", "--version", "4", "--json").stdout)

    assert later["version"] == 5
    assert Checkpoint("out").info.lineage.version == 5


def test_what_the_gate_rejects_is_passed_over(files: Path, run: Run) -> None:
    result = run("a.safetensors", "wild.safetensors", "a.safetensors", "--report", "report.json")

    table = [line.split()[:3] for line in result.stdout.splitlines()]
    assert ["a.safetensors", "accepted", "1"] in table
    assert ["wild.safetensors", "rejected", "-"] in table
    assert ["a.safetensors", "known", "-"] in table
    assert "wild.safetensors was rejected: the source's root mean square" in result.stdout
    assert Checkpoint("out").info.lineage.version == 1
    result = json.loads(Path("report.json").read_text())
    assert [report["outcome"] for report in result["reports"]] == ["accepted", "rejected"]
    assert result["reports"][0]["sha256"] == result["sha256"]


def test_the_same_weights_in_another_file_are_known(files: Path, run: Run) -> None:
    trained = torch.load(files / "b.pt")["state_dict"]
    plain = {name.removeprefix("model."): tensor for name, tensor in trained.items()}
    save_file(plain, "b.safetensors", {"epoch": "3"})

    result = json.loads(run("b.pt", "b.safetensors", "a.safetensors", "b.pt", "--json").stdout)

    assert [source["status"] for source in result["sources"]] == [
        "accepted",
        "known",
        "accepted",
        "known",
    ]
    assert result["version"] == 2


def test_nothing_accepted_is_no_success(run: Run) -> None:
    result = run("wild.safetensors", code=1)

    assert "nothing was accepted" in result.stderr
    assert list(Path().iterdir()) == []


def test_every_source_is_looked_at_before_the_first_is_folded(run: Run) -> None:
    torch.save(timm.create_model("test_vit", num_classes=3).state_dict(), "vit.pth")

    result = run("a.safetensors", "vit.pth", code=1)

    assert "grasp: vit.pth is not a test_efficientnet checkpoint\n  missing: conv_stem.weight" in (
        result.stderr
    )
    assert "refine" not in result.stderr
    assert [path.name for path in Path().iterdir()] == ["vit.pth"]


def test_sources_of_other_classes_are_told_by_name(run: Run) -> None:
    torch.save(timm.create_model(SPEC.architecture, num_classes=2).state_dict(), "two.pt")

    assert "give the source's class names" in run("two.pt", code=1).stderr
    run("two.pt", "--source-classes", "two,zero")

    assert Checkpoint("out").info.classes == CLASSES


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "refine.epoch=4"], "refine.epoch: there is no such parameter"),
        (["--preprocess", "mean=grey"], "mean: Input should be a valid tuple"),
    ],
)
def test_what_makes_no_sense_is_named(run: Run, words: list[str], said: str) -> None:
    result = run("a.safetensors", *words, code=2)

    assert said in unframed(result.stderr)


def test_an_unknown_architecture(run: Run) -> None:
    result = run("a.safetensors", "-a", "test_eficientnet", code=1)

    assert "did you mean test_efficientnet" in result.stderr


def test_interrupted_it_leaves_nothing(files: Path, tmp_path: Path) -> None:
    """Also where a script started it with `&`, and so with interrupts ignored."""
    words = arguments(files, "a.safetensors", "--set", "refine.epochs=10000")
    grasp = Path(sys.executable).with_name("grasp")
    with running(
        [*IGNORING_INTERRUPTS, grasp, "merge", *words],
        env=os.environ | {"HOME": str(files)},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line == "a.safetensors: refine\n":
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()

        assert process.wait() == 130
    assert rest == "stopped; out is as it was\n"
    assert list(tmp_path.iterdir()) == []


def test_without_torch_it_says_what_to_install(files: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from grasp_cli.main import main; main()"

    result = subprocess.run(
        [sys.executable, "-c", code, "merge", *arguments(files, "a.safetensors")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert result.returncode == 1
    assert result.stderr.startswith("grasp: merging needs torch, which is not installed here\n")
    assert "py3-none-any.whl[torch]'`" in result.stderr


def convert(*words: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["convert", *map(str, words)])
    assert result.exit_code == code, result.output
    return result


def test_a_checkpoint_is_converted_beside_itself(files: Path, tmp_path: Path) -> None:
    checkpoint = Path(shutil.copy(files / "b.pt", tmp_path))

    result = convert(checkpoint)

    assert result.stdout == f"{tmp_path / 'b.safetensors'}\n"
    assert (
        Checkpoint(tmp_path / "b.safetensors").keys() == Checkpoint(files / "a.safetensors").keys()
    )


def test_it_is_converted_into_a_folder_and_says_what_it_is(files: Path, tmp_path: Path) -> None:
    names = ("-a", SPEC.architecture, "--classes", "one,two,zero")

    result = json.loads(convert(files / "b.pt", tmp_path, *names, "--json").stdout)

    file = Checkpoint(result["path"])
    assert file.path == tmp_path / "b.safetensors"
    assert (file.sha256, file.path.stat().st_size) == (result["sha256"], result["size"])
    assert (file.info.architecture, file.info.classes) == (SPEC.architecture, CLASSES)


def test_outputs_without_names_are_counted(files: Path, tmp_path: Path) -> None:
    convert(files / "b.pt", tmp_path / "out", "-a", SPEC.architecture)

    file = Checkpoint(tmp_path / "out")
    assert (file.info.architecture, file.info.classes) == (SPEC.architecture, None)
    assert file.info.preprocessing is not None
    assert file["classifier.bias"].shape == (len(CLASSES),)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["a.safetensors", "out"], 1, "a.safetensors is safetensors already"),
        (["merge.json", "out"], 1, "merge.json is not a torch checkpoint"),
        (["b.pt", "out", "-a", "test_vit", "--classes", "a,b"], 1, "b.pt is not a test_vit"),
        (["b.pt", "out", "-a", "test_resne", "--classes", "a"], 1, "did you mean test_resnet"),
        (["b.pt", "out", "-a", "test_vit"], 1, "b.pt is not a test_vit"),
        (["b.pt", "out", "-a", "test_resnet"], 1, "b.pt is not a test_resnet"),
        (["b.pt", "out", "-a", SPEC.architecture, "--classes", "a,b"], 1, "[3] instead of [2]"),
        (["b.pt", "out", "-a", SPEC.architecture, "--classes", "a,b,a"], 2, "twice: a"),
    ],
)
def test_what_cannot_be_converted(
    files: Path, tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    checkpoint, output, *options = words

    result = convert(files / checkpoint, tmp_path / output, *options, code=code)

    assert said in unframed(result.stderr)
    assert list(tmp_path.iterdir()) == []
