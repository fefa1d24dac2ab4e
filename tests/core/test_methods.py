"""Methods as declared data, and one of the tests' own through whole folds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from grasp_core import (
    METHODS,
    STOP,
    Checkpoint,
    CheckpointError,
    CheckpointMismatch,
    ConfigError,
    FoldReport,
    FoldStopped,
    GraspConfig,
    ModelSpec,
    Progress,
    fold,
    folding,
    parse_config,
)
from grasp_core.config import MethodConfig
from grasp_core.methods import list_stages
from grasp_core.methods.declaration import Method, Needs
from grasp_core.methods.source import take_source
from grasp_core.parameters import change_config
from grasp_core.progress import Recorder
from grasp_core.report import Verdict
from grasp_core.state import KEPT
from grasp_core.workbench import Merge, Workbench
from tests.bits import flip_a_bit
from tests.configs import grasp_alone
from tests.core import shadow
from tests.core.shadow import COUNT, SHADOW, ShadowConfig
from tests.core.toy import CLASSES, TINY, ToyTask, nudged, quick, save, tiny_weights

QUICK = {"method": "shadow", "alignment_batches": 1, "refine": {"epochs": 0}}
ROOT = Path(__file__).parents[2]
EPOCHS = {"epochs": 3, "batch_size": 16, "lr": 1e-3}


@pytest.fixture(autouse=True)
def _shadow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(METHODS, "shadow", SHADOW)
    yield
    shadow.MADE.clear()


class Files:
    """A base, sources that were fine-tuned from it, and what folds make of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        first = tiny_weights(seed=1)
        self.base = save(folder / "base.safetensors", first)
        self.sources = [
            save(folder / f"source-{n}.safetensors", nudged(first, 0.1, seed=n)) for n in range(3)
        ]

    def fold(self, number: int, name: str = "", /, **changes: object) -> FoldReport:
        """Fold a source into the version that the one before it gave."""
        given: dict[str, object] = {
            "merged": self.output(number - 1, name) if number else None,
            "files": self.given(number, name),
            "files_output": self.folder / f"v{number}{name}",
            "config": parse_config(QUICK),
            "force": True,
        }
        arguments = given | changes
        return fold(
            TINY,
            self.sources[number],
            ToyTask(),
            self.output(number, name),
            **arguments,  # type: ignore[arg-type]
        )

    def output(self, number: int, name: str = "") -> Path:
        return self.folder / f"v{number}{name}.safetensors"

    def given(self, number: int, name: str = "") -> dict[str, Path]:
        """What a fold of this number reads, beside the source and the version before."""
        return {"base": self.base} | (
            {"state/shadow": self.state(number - 1, name)} if number else {}
        )

    def state(self, number: int, name: str = "") -> Path:
        return self.folder / f"v{number}{name}" / "state" / "shadow"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def sums_of(files: Files, count: int) -> dict[str, Tensor]:
    """The naive sum of the first sources' task vectors."""
    base = Checkpoint(files.base)
    vectors = [
        {name: Checkpoint(path)[name].double() - base[name].double() for name in base}
        for path in files.sources[:count]
    ]
    return {name: sum((v[name] for v in vectors), torch.tensor(0.0)) for name in base}


def test_a_method_remembers_from_fold_to_fold(files: Files) -> None:
    reports = [files.fold(number) for number in range(3)]

    wanted, base = sums_of(files, 3), Checkpoint(files.base)
    state, merged = Checkpoint(files.state(2)), Checkpoint(files.output(2))
    assert int(state[COUNT]) == 3
    for name in (parameter.name for parameter in reports[2].parameters):
        torch.testing.assert_close(state[name], wanted[name])
        expected = (base[name].double() + 0.5 * wanted[name]).float()
        torch.testing.assert_close(merged[name], expected)
    sizes = {files.state(number).stat().st_size for number in range(3)}
    assert len(sizes) == 1


def test_a_state_says_whose_it_is_and_a_report_which_it_is(files: Files) -> None:
    report = files.fold(0)

    state = Checkpoint(files.state(0))
    assert json.loads(state.metadata["grasp_state"]) == {"method": "shadow", "layout": 1}
    assert [(file.name, file.sha256) for file in report.files] == [("state/shadow", state.sha256)]
    assert report.method == "shadow"
    assert report.details == {"count": 1}
    assert "sum" in [stage.name for stage in report.stages]
    assert all(parameter.score is not None for parameter in report.parameters)
    assert FoldReport.model_validate_json(report.to_json()) == report


def test_the_next_state_is_computed_once_tensor_by_tensor(files: Files) -> None:
    files.fold(0)

    (sums,) = shadow.MADE
    assert sorted(sums.asked) == sorted(sums)


def test_statistics_are_recalibrated_for_every_method(files: Files) -> None:
    names = [stage.name for stage in files.fold(0).stages]
    assert names.index("sum") < names.index("transfer") < names.index("recalibrate")
    kept = files.fold(0, "kept", config=parse_config(QUICK | {"norm_stats": "keep"}))
    assert "recalibrate" not in [stage.name for stage in kept.stages]


@pytest.mark.parametrize("damage", [None, "a bit", "gone"])
def test_an_interrupted_fold_goes_on_with_its_state(files: Files, damage: str | None) -> None:
    config = parse_config(QUICK | {"refine": EPOCHS})
    files.fold(0)
    straight = files.fold(1, config=config)
    content = files.state(1).read_bytes()
    files.state(1).unlink()
    shadow.MADE.clear()
    work = files.folder / "work"

    def stop(progress: Progress) -> str | None:
        return STOP if progress.metrics.get("epoch", 0) > 1 else None

    with pytest.raises(FoldStopped):
        files.fold(1, config=config, work_dir=work, progress=stop)
    assert not files.state(1).exists()
    if damage == "a bit":
        flip_a_bit(work / "shadow" / KEPT / "state" / "shadow")
    elif damage == "gone":
        (work / "shadow" / KEPT / "state" / "shadow").unlink()
    resumed = files.fold(1, config=config, work_dir=work)

    assert len(shadow.MADE) == (1 if damage is None else 2)
    assert resumed.resumed_from_epoch == (1 if damage is None else None)
    assert (resumed.sha256, resumed.files) == (straight.sha256, straight.files)
    assert files.state(1).read_bytes() == content
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("changed", ["base", "state/shadow"])
def test_what_was_begun_with_other_files_is_begun_again(files: Files, changed: str) -> None:
    config = parse_config(QUICK | {"refine": EPOCHS})
    for number in (0, 1):
        files.fold(number)
    other = {
        "base": save(files.folder / "other.safetensors", nudged(tiny_weights(1), 0.01, seed=9)),
        "state/shadow": files.state(0),
    }
    work = files.folder / "work"

    with pytest.raises(FoldStopped):
        files.fold(
            2,
            config=config,
            work_dir=work,
            progress=lambda p: STOP if p.metrics.get("epoch", 0) > 1 else None,
        )
    resumed = files.fold(
        2, config=config, work_dir=work, files=files.given(2) | {changed: other[changed]}
    )

    assert resumed.resumed_from_epoch is None


def test_a_rejected_fold_leaves_no_state(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "judge", lambda *_: Verdict(reason="no"))

    report = files.fold(0, force=False)

    assert not report.accepted
    assert report.files == ()
    assert not files.output(0).exists()
    assert not files.state(0).exists()


def test_what_a_method_needs_is_asked_for_before_anything_is_read(files: Files) -> None:
    with pytest.raises(ConfigError, match="shadow needs a base") as raised:
        files.fold(0, files={})
    assert raised.value.hint
    with pytest.raises(ConfigError, match="nowhere to write"):
        files.fold(0, files_output=None)


def test_a_base_of_another_architecture_is_refused(files: Files) -> None:
    other = ModelSpec(architecture="test_resnet", classes=CLASSES)
    base = save(files.folder / "other.safetensors", tiny_weights(4, other))

    with pytest.raises(CheckpointMismatch, match=r"other\.safetensors"):
        files.fold(0, files={"base": base})


def test_a_base_may_have_other_classes(files: Files) -> None:
    spec = ModelSpec(architecture=TINY.architecture, classes=("fox", "owl"))
    base = save(files.folder / "other.safetensors", tiny_weights(1, spec), spec.classes)

    report = files.fold(0, files={"base": base})

    sums, source = Checkpoint(files.state(0)), Checkpoint(files.sources[0])
    own, head = Checkpoint(base)["classifier.bias"], source["classifier.bias"].double()
    assert sums["classifier.bias"][:2].tolist() == [0, 0]  # what the base lacks is not compared
    torch.testing.assert_close(sums["classifier.bias"][2], head[2] - own[0].double())
    shares = {p.name: float(p.transferred) for p in report.parameters}
    assert shares["classifier.bias"] == pytest.approx(1 / 3)  # nor given by the source
    assert shares["conv_stem.weight"] == 1


def test_other_methods_take_no_notice_of_a_base_or_a_state(files: Files) -> None:
    files.fold(0)
    config = grasp_alone(alignment_batches=1, refine={"epochs": 0})

    report = files.fold(1, config=config)

    assert report.method == "grasp"
    assert report.files == ()
    assert not files.state(1).exists()
    assert not any("begins" in warning for warning in report.warnings)


@pytest.mark.parametrize("found", ["none", "another layout"])
def test_a_method_begins_in_the_middle_with_a_state_of_its_own(
    files: Files, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setitem(METHODS, "shadow", replace(SHADOW, state=2))
        files.fold(0)

    report = files.fold(1, **{"files": files.given(0)} if found == "none" else {})

    assert int(Checkpoint(files.state(1))[COUNT]) == 1
    assert report.warnings == (
        "shadow begins with this fold: of the sources before, it knows no more than the merged"
        " model",
    )


def test_a_method_that_cannot_begin_in_the_middle_says_so(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = Needs(base=True, history=True)
    monkeypatch.setitem(METHODS, "shadow", replace(SHADOW, needs=needs))
    files.fold(0)
    files.fold(1)

    with pytest.raises(ConfigError, match="shadow cannot take over"):
        files.fold(2, files=files.given(0))


def test_what_is_no_state_is_refused(files: Files) -> None:
    files.fold(0)

    with pytest.raises(CheckpointError, match="is not the state of a method"):
        files.fold(1, files=files.given(0) | {"state/shadow": files.base})


def test_a_state_that_is_not_declared_is_a_mistake(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "shadow", replace(SHADOW, state=None))

    with pytest.raises(ConfigError, match="declares no state"):
        files.fold(0)


def test_a_stage_that_is_not_declared_is_a_mistake() -> None:
    recorder = Recorder(torch.device("cpu"), plan=[(None, "sum")])
    with recorder.stage("sum"):
        pass
    with pytest.raises(ValueError, match="declares no stage 'dream'"), recorder.stage("dream"):
        pass


# Parameters


def problems(values: object) -> dict[tuple[int | str, ...], str]:
    with pytest.raises(ValidationError) as raised:
        parse_config(values)
    return {error["loc"]: error["msg"] for error in raised.value.errors()}


def test_the_method_decides_which_parameters_there_are() -> None:
    assert parse_config({"tau": 0.2}).candidates == (GraspConfig(tau=0.2),)
    config = parse_config({"method": "shadow", "scale": 0.25, "refine": {"epochs": 7}})
    assert config.candidates == (ShadowConfig(scale=0.25),)
    assert config.refine.epochs == 7
    assert parse_config(config) is config
    assert parse_config(json.loads(config.model_dump_json())) == config


def test_parameters_of_another_method_are_refused_by_name() -> None:
    assert problems({"method": "shadow", "tau": 0.3, "tua": 1, "refine": {"lr": -1}}) == {
        ("refine", "lr"): "Value error, must be a number above 0, at most 100, or auto",
        ("tau",): "shadow has no such parameter; it is one of grasp",
        ("tua",): "Extra inputs are not permitted",
    }
    assert problems({"alpha": 0.5}) == {
        ("alpha",): "grasp has no such parameter; it is one of regmean, opcm"
    }


@pytest.mark.parametrize("name", ["average", "", None, 3, ["grasp"]])
def test_a_method_that_does_not_exist_is_refused(name: object) -> None:
    ((where, message),) = problems({"method": name}).items()
    assert where == ("method",)
    assert message == f"there is no such method; there are {', '.join(METHODS)}"


def test_another_method_keeps_what_is_common() -> None:
    before = grasp_alone(tau=0.2, seed=5, refine={"epochs": 7}).model_dump(mode="json")

    changed = change_config(before, {"method": "shadow", "scale": 0.1, "refine": {"lr": 1e-3}})

    assert changed.candidates == (ShadowConfig(scale=0.1),)
    assert changed.seed == 5
    assert (changed.refine.epochs, changed.refine.lr) == (7, 1e-3)
    back = change_config(changed.model_dump(mode="json"), {"method": "grasp"})
    assert back.candidates == (GraspConfig(tau="auto"),)
    assert back.seed == 5


def test_parameters_of_a_method_that_is_gone_can_be_left_behind() -> None:
    stored = {"method": "gone", "what": 3, "seed": 4}
    assert change_config(stored, {"method": "shadow"}).seed == 4
    with pytest.raises(ValidationError, match="no such method"):
        change_config(stored, {"seed": 5})


# Declarations


def test_declarations_agree_with_themselves() -> None:
    for name, method in METHODS.items():
        assert method.name == name
        assert issubclass(method.parameters, MethodConfig)
        assert parse_config({"method": name}).candidates == (method.parameters(method=name),)
        stages = [stage.name for stage in list_stages([method])]
        assert len(set(stages)) == len(stages)
        assert method.summary.endswith(".")


@pytest.mark.parametrize("module", ["methods", "report", "config", "operations"])
def test_declarations_need_no_torch(module: str) -> None:
    code = (
        f"import sys, grasp_core.{module}; print(sorted({{'torch', 'numpy'}} & {{*sys.modules}}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert found.strip() == "[]"


PLUGIN = """
from typing import Literal
from grasp_core.config import MethodConfig
from grasp_core.methods.declaration import Method

class EchoConfig(MethodConfig):
    method: Literal["echo"] = "echo"
    times: int = 2

METHOD = Method("echo", "Says it again.", None, EchoConfig, merge=lambda *_: None)
OTHER = "no method"
"""


def installed(folder: Path, points: str, first: str = "") -> subprocess.CompletedProcess[str]:
    """What a process sees that has a package with these entry points, and runs `first`."""
    about = folder / "echo_merge-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-merge\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[grasp.methods]\n{points}\n")
    (folder / "echo_merge.py").write_text(PLUGIN)
    code = (
        f"{first}\n"
        "from grasp_core.methods import METHODS; from grasp_core.parameters import parse_config;"
        "print(*METHODS, METHODS['grasp'].parameters.__name__,"
        " parse_config({'method': 'echo', 'times': 3}).candidates)"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_packages_add_methods_as_entry_points(tmp_path: Path) -> None:
    points = "echo = echo_merge:METHOD\ngrasp = echo_merge:METHOD"

    process = installed(tmp_path, points)

    assert "echo GraspConfig" in process.stdout, process.stderr
    assert "times=3" in process.stdout


def test_a_package_may_be_imported_before_ours(tmp_path: Path) -> None:
    process = installed(tmp_path, "echo = echo_merge:METHOD", first="import echo_merge")

    assert "times=3" in process.stdout, process.stderr


def test_a_package_that_offers_no_method_is_named(tmp_path: Path) -> None:
    process = installed(tmp_path, "echo = echo_merge:OTHER")

    assert "echo_merge:OTHER of echo-merge is no Method" in process.stderr


def test_a_method_of_a_broken_package_says_why(tmp_path: Path) -> None:
    process = installed(tmp_path, "echo = echo_merge:OTHER")

    assert process.stdout == ""
    assert process.stderr.count("RuntimeWarning: echo_merge:OTHER of echo-merge is no Method") == 1
    told = process.stderr.partition("ValidationError: ")[2]
    assert "echo_merge:OTHER of echo-merge is no Method (its entry point in grasp.methods" in told


def test_a_method_leaves_another_file_with_one_line_and_is_given_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`state/pair` and `state/pair+seen`: nothing between it and the next fold knows of either."""
    seen: list[int] = []

    def merge(bench: Workbench, _: MethodConfig, state: Mapping[str, Tensor] | None) -> Merge:
        path = bench.files.get("state/pair+seen")
        count = int(Checkpoint(path)["count"]) + 1 if path else 1
        seen.append(count if state is None else count + int(state["hundreds"]))
        bench.keep("state/pair+seen", {"count": torch.tensor(count)})
        taken = take_source(bench)
        bench.remember({"hundreds": torch.tensor(100 * count)})
        return Merge(taken.parameters)

    pair = Method("pair", "Leaves two files.", None, MethodConfig, merge, state=1)
    monkeypatch.setitem(METHODS, "pair", pair)
    merged: Path | None = None
    files: dict[str, Path] = {}
    for number in range(1, 4):
        folder = tmp_path / str(number)
        report = fold(
            TINY,
            save(tmp_path / f"source{number}", tiny_weights(number)),
            ToyTask(),
            folder / "weights",
            merged=merged,
            files=files,
            files_output=folder,
            config=quick(candidates=(MethodConfig(method="pair"),), refine={"steps": 0}),
            force=True,
        )
        merged = folder / "weights"
        files = {file.name: folder / file.name for file in report.files}
        assert list(files) == ["state/pair", "state/pair+seen"]

    assert seen == [1, 102, 203]
