"""Operations, run in this process on real images."""

from __future__ import annotations

import hashlib
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import timm
import torch

from grasp_core import (
    ArchitectureError,
    BrokenExamples,
    Checkpoint,
    CheckpointError,
    CheckpointInfo,
    CheckpointMismatch,
    ConfigError,
    FoldReport,
    FoldStopped,
    GraspError,
    ModelSpec,
    TargetError,
    write_checkpoint,
)
from grasp_core.kinds.image.config import Preprocessing, PreprocessingOverrides
from grasp_core.methods import METHODS
from grasp_core.operations import Live, PrepareModel, ValidateTarget
from grasp_core.parameters import parse_config
from grasp_core.report import Figures
from tests.core.shadow import SHADOW
from tests.worker.digits import (
    CLASSES,
    CONFIG,
    PER_CLASS,
    SPEC,
    Bench,
    Heard,
    reading,
    write_target,
    write_weights,
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def refuse(stage: str, fraction: float, metrics: Live) -> None:
    if stage == "decode":
        raise FoldStopped("enough")


def test_a_good_target_is_summed_up(bench: Bench, tmp_path: Path) -> None:
    heard = Heard()

    summary = ValidateTarget({"target": bench.target}, tmp_path / "cache").run(heard)

    assert summary.classes == CLASSES
    assert summary.images == 3 * PER_CLASS
    assert list(summary.counts) == ["train", "val", "test"]
    for name in CLASSES:
        assert sum(counts[name] for counts in summary.counts.values()) == PER_CLASS
    assert (summary.broken, summary.broken_count) == ((), 0)
    assert heard.stages == ["hash", "decode"]
    assert heard.reported[-1] == ("decode", 1.0, {})
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_fingerprint_is_of_names_and_contents(bench: Bench, tmp_path: Path) -> None:
    digest = hashlib.sha256()
    for file in sorted(bench.target.rglob("*.png"), key=lambda f: f.relative_to(bench.target)):
        digest.update(f"{file.relative_to(bench.target)}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())

    assert (
        ValidateTarget({"target": bench.target}, tmp_path).run(Heard()).fingerprint
        == digest.hexdigest()
    )


def test_a_few_broken_images_are_named(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    (target / "one" / "000.png").write_bytes(b"no picture")

    summary = ValidateTarget({"target": target}, tmp_path / "cache").run(Heard())

    assert summary.broken_count == 1
    assert summary.broken == ({"name": "one/000.png", "reason": "not an image of a known format"},)
    assert summary.images == 3 * PER_CLASS - 1


def break_many(target: Path) -> None:
    for number in range(10):
        (target / "one" / f"{number:03}.png").write_bytes(b"no picture")


def empty(target: Path) -> None:
    for file in target.rglob("*.png"):
        file.unlink()


@pytest.mark.parametrize(
    ("spoil", "kind", "reported"),
    [
        (break_many, BrokenExamples, "10 of 36 examples are broken: one/000.png"),
        (empty, TargetError, "."),
    ],
)
def test_a_target_that_cannot_be_used_leaves_nothing(
    tmp_path: Path, spoil: object, kind: type[GraspError], reported: str
) -> None:
    target = write_target(tmp_path / "target", per_class=12)
    spoil(target)  # type: ignore[operator]

    with pytest.raises(kind, match=reported):
        ValidateTarget({"target": target}, tmp_path / "cache").run(Heard())

    assert list((tmp_path / "cache").iterdir()) == []


def test_a_stored_file_is_not_called_by_its_digest(tmp_path: Path) -> None:
    path = tmp_path / ("f" * 64)
    pq.write_table(pa.table({"pic": [b"1"], "y": [0]}), path)

    with pytest.raises(TargetError, match="the file has the columns pic, y") as refusal:
        ValidateTarget({"target": path}, tmp_path).run(lambda *_: None)

    assert "image or img" in str(refusal.value.hint)
    assert "docs/target-data.md" in str(refusal.value.hint)


def test_no_job_decodes_more_than_allowed(bench: Bench, tmp_path: Path) -> None:
    one = 3 * PER_CLASS * 32 * 32 * 3
    prepare = PrepareModel(
        architecture=SPEC.architecture,
        classes=None,
        preprocessing=SPEC.preprocessing.model_dump(exclude_unset=True),
        files={"target": bench.target},
        target_fingerprint=bench.fingerprint,
        target_classes=CLASSES,
        cache_dir=tmp_path / "cache",
        max_decoded_bytes=one - 1,
    )
    fold = replace(bench.fold("large"), cache_dir=tmp_path / "cache", max_decoded_bytes=one - 1)
    validate = ValidateTarget({"target": bench.target}, tmp_path / "cache", max_decoded_bytes=one)

    for operation in (prepare, fold, validate):
        with pytest.raises(TargetError, match=r"120 examples that decode to .*max_decoded_bytes"):
            operation.run(Heard())
    assert not list((tmp_path / "cache").glob("*"))

    replace(prepare, max_decoded_bytes=one).run(Heard())


def test_a_target_may_not_be_larger_than_allowed(bench: Bench, tmp_path: Path) -> None:
    size = sum(file.stat().st_size for file in bench.target.rglob("*.png"))

    with pytest.raises(TargetError, match="max_bytes"):
        ValidateTarget({"target": bench.target}, tmp_path, max_bytes=size - 1).run(Heard())

    assert (
        ValidateTarget({"target": bench.target}, tmp_path, max_bytes=size).run(Heard()).images > 0
    )


def test_validation_can_be_stopped(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(FoldStopped):
        ValidateTarget({"target": bench.target}, tmp_path).run(refuse)

    assert list(tmp_path.iterdir()) == []


def preparing(bench: Bench, cache: Path) -> PrepareModel:
    return PrepareModel(
        architecture=SPEC.architecture,
        classes=None,
        preprocessing=SPEC.preprocessing.model_dump(),
        files={"target": bench.target},
        target_fingerprint=bench.fingerprint,
        target_classes=CLASSES,
        cache_dir=cache,
    )


def test_a_base_must_be_such_a_model(bench: Bench, tmp_path: Path) -> None:
    base = write_weights(tmp_path / "base.safetensors", seed=3)
    two = SPEC.model_copy(update={"classes": CLASSES[:2]})
    fewer = write_weights(tmp_path / "fewer.safetensors", seed=3, spec=two)
    whole = preparing(bench, tmp_path / "cache").run(Heard())

    for path in (base, fewer):  # whose classes it names itself
        model = reading(preparing(bench, tmp_path / "cache"), base=path)
        assert model.run(Heard()) == whole

    tensors = dict(Checkpoint(base))
    tensors.pop("conv_stem.weight")
    lacking = tmp_path / "lacking.safetensors"
    write_checkpoint(lacking, tensors, CheckpointInfo())
    with pytest.raises(CheckpointMismatch, match=r"the base is not a .* 1 missing: conv_stem"):
        reading(preparing(bench, tmp_path / "cache"), base=lacking).run(Heard())


@pytest.mark.parametrize(("factor", "reason"), [(0.0, "all its values are zero"), (1e30, "above")])
def test_a_base_must_be_a_trained_model(
    bench: Bench, tmp_path: Path, factor: float, reason: str
) -> None:
    weights = Checkpoint(write_weights(tmp_path / "base.safetensors", seed=3))
    tensors = {n: t * factor if t.is_floating_point() else t for n, t in weights.items()}
    base = tmp_path / "strange.safetensors"
    write_checkpoint(base, tensors, CheckpointInfo(classes=weights.info.classes))

    with pytest.raises(CheckpointError, match=f"the base is no trained model: .*{reason}"):
        reading(preparing(bench, tmp_path / "cache"), base=base).run(Heard())


def test_a_base_of_other_classes_is_taken_with_a_word(bench: Bench, tmp_path: Path) -> None:
    weights = Checkpoint(write_weights(tmp_path / "base.safetensors", seed=3))
    names = tuple(f"other {number}" for number in range(len(weights.info.classes or ())))
    base = tmp_path / "other.safetensors"
    write_checkpoint(base, dict(weights), CheckpointInfo(classes=names))

    prepared = reading(preparing(bench, tmp_path / "cache"), base=base).run(Heard())

    assert any("none of the model's classes" in warning for warning in prepared.warnings)


def test_a_base_must_be_finite(bench: Bench, tmp_path: Path) -> None:
    tensors = dict(Checkpoint(bench.merged))
    tensors["conv_stem.weight"] = torch.full_like(tensors["conv_stem.weight"], torch.nan)
    base = tmp_path / "base.safetensors"
    write_checkpoint(base, tensors, CheckpointInfo())

    with pytest.raises(CheckpointError, match=r"not finite in conv_stem\.weight"):
        reading(preparing(bench, tmp_path / "cache"), base=base).run(Heard())


def test_a_model_takes_its_targets_classes(bench: Bench, tmp_path: Path) -> None:
    heard = Heard()

    prepared = preparing(bench, tmp_path).run(heard)

    assert prepared.classes == CLASSES
    assert isinstance(prepared.preprocessing, Preprocessing)
    assert (prepared.preprocessing.image_size, prepared.preprocessing.resize) == (32, 32)
    state = timm.create_model(SPEC.architecture, num_classes=3).state_dict()
    found = {name: spec.shape for name, spec in prepared.manifest.tensors.items()}
    assert found == {name: tuple(tensor.shape) for name, tensor in state.items()}
    assert heard.stages == ["build", "decode"]
    assert pickle.loads(pickle.dumps(prepared)) == prepared


def test_the_first_fold_of_a_prepared_model_needs_the_target_no_more(
    bench: Bench, tmp_path: Path
) -> None:
    preparing(bench, tmp_path / "cache").run(Heard())
    operation = replace(bench.fold("prepared"), cache_dir=tmp_path / "cache", version=1)

    elsewhere = reading(operation, target=tmp_path / "gone", weights=None).run(Heard())

    assert elsewhere.outcome == "accepted"


def test_a_target_that_changed_is_noticed_when_it_is_read(bench: Bench, tmp_path: Path) -> None:
    changed = tmp_path / "target"
    shutil.copytree(bench.target, changed)
    operation = reading(preparing(bench, tmp_path / "cache"), target=changed)
    picture = next(changed.glob("one/*.png"))
    shutil.copy(next(changed.glob("two/*.png")), picture)

    with pytest.raises(TargetError, match="is not what it was when it was validated"):
        operation.run(Heard())

    shutil.copy(bench.target / "one" / picture.name, picture)
    assert operation.run(Heard()).classes == CLASSES


def test_a_model_may_have_more_classes_than_its_target(bench: Bench, tmp_path: Path) -> None:
    operation = replace(preparing(bench, tmp_path), classes=("zero", "nine", "two", "one"))

    prepared = operation.run(Heard())

    assert prepared.classes == ("zero", "nine", "two", "one")
    assert prepared.manifest.classes == 4


@pytest.mark.parametrize(
    ("changes", "kind", "reported"),
    [
        ({"architecture": "mobilevit_xxz"}, ArchitectureError, "did you mean mobilevit_xxs"),
        ({"classes": ("zero", "one")}, ConfigError, "lacks classes that its target has: two"),
        ({"classes": (*CLASSES, "one")}, ConfigError, "given twice: one"),
        (
            {"preprocessing": PreprocessingOverrides(image_size=4096, crop_pct=0.1)},
            ConfigError,
            "less than or equal to 8192",
        ),
    ],
)
def test_a_model_that_cannot_be_is_refused_before_the_target_is_read(
    bench: Bench, tmp_path: Path, changes: dict[str, object], kind: type[GraspError], reported: str
) -> None:
    elsewhere = reading(preparing(bench, tmp_path), target=tmp_path / "nowhere")
    operation = replace(elsewhere, **changes)  # type: ignore[arg-type]

    with pytest.raises(kind, match=reported):
        operation.run(Heard())


def test_a_fold_tells_what_it_measured(bench: Bench) -> None:
    operation, heard = bench.fold("reported"), Heard()

    folded = operation.run(heard)

    report = FoldReport.model_validate_json(folded.report)
    assert report.metrics.before is not None
    assert report.metrics.after is not None
    assert folded.metrics == report.figures
    assert (folded.outcome, folded.reason) == ("accepted", None)
    [weights] = folded.files
    content = (operation.output / "weights").read_bytes()
    assert (weights.name, folded.method) == ("weights", "grasp")
    assert folded.sha256 == weights.sha256 == hashlib.sha256(content).hexdigest()
    assert weights.size == len(content)
    assert folded.stages == report.stages
    assert (
        Checkpoint(operation.output / "weights").info.lineage.version
        == operation.version
        == report.version
    )
    fractions = [fraction for _, fraction, _ in heard.reported]
    assert fractions == sorted(fractions)
    assert heard.stages[:3] == ["decode", "load", "baseline"]
    assert pickle.loads(pickle.dumps(operation)) == operation


def test_a_fold_carries_base_and_state(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "shadow", SHADOW)
    values = CONFIG.model_dump(include={"refine", "gate", "device"}) | {"method": "shadow"}
    operation = replace(bench.fold("remembered"), config=parse_config(values), version=1)
    first = reading(operation, base=bench.merged, weights=None)
    made = {name: first.output / name for name in ("weights", "state/shadow")}
    second = replace(reading(first, **made), output=bench.root / "second", version=2)

    for operation, count in ((first, 1), (second, 2)):
        folded = operation.run(Heard())

        assert [file.name for file in folded.files] == ["weights", "state/shadow"]
        for file in folded.files:
            content = (operation.output / file.name).read_bytes()
            assert (file.sha256, file.size) == (sha256_of(content), len(content))
        assert int(Checkpoint(operation.output / "state/shadow")["count"]) == count


def test_a_stopped_fold_goes_on_where_it_was(bench: Bench) -> None:
    def stop(stage: str, fraction: float, metrics: Live) -> None:
        if metrics.get("epoch") == 3:
            raise FoldStopped("enough")

    with pytest.raises(FoldStopped):
        bench.fold("stopped").run(stop)
    resumed = bench.fold("stopped").run(Heard())

    assert FoldReport.model_validate_json(resumed.report).resumed_from_epoch == 2
    assert resumed.sha256 == bench.fold("straight").run(Heard()).sha256 is not None


def test_a_rejected_fold_has_a_reason_and_no_file(bench: Bench, tmp_path: Path) -> None:
    weights = dict(Checkpoint(bench.source))
    weights["conv_stem.weight"] = torch.full_like(weights["conv_stem.weight"], torch.nan)
    write_checkpoint(tmp_path / "nan.safetensors", weights, CheckpointInfo(classes=CLASSES))

    folded = reading(bench.fold("rejected"), source=tmp_path / "nan.safetensors").run(Heard())

    assert folded.outcome == "rejected"
    assert folded.reason == "the source has values that are not finite in conv_stem.weight"
    assert (folded.sha256, folded.files) == (None, ())
    assert folded.metrics == Figures(before=None, after=None, transferred_share=None)
    assert not bench.fold("rejected").output.exists()


def test_a_source_of_another_architecture_is_an_error(bench: Bench, tmp_path: Path) -> None:
    other = ModelSpec(architecture="test_resnet", classes=CLASSES)
    source = write_weights(tmp_path / "other.safetensors", seed=3, spec=other)

    with pytest.raises(CheckpointMismatch, match="not a test_efficientnet checkpoint"):
        reading(bench.fold("other"), source=source).run(Heard())
