"""What is known before anything is merged: how good the merged model is, and the source itself."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError
from torch import Tensor

from grasp_core.checkpoints import open_sealed, write_sealed
from grasp_core.config import Frozen
from grasp_core.errors import CheckpointError
from grasp_core.evaluation import Predictions, compare, predict
from grasp_core.report import SplitCounts, SplitMetrics, StageRecord
from grasp_core.workbench import Workbench

BASELINE_FILE = "baseline.safetensors"


@dataclass(frozen=True)
class Evaluation:
    """A model on the two splits that it is not trained on."""

    val: Predictions
    test: Predictions

    @property
    def metrics(self) -> SplitMetrics:
        return SplitMetrics(val=self.val.metrics, test=self.test.metrics)

    def compare(self, after: Evaluation) -> SplitCounts:
        return SplitCounts(val=compare(self.val, after.val), test=compare(self.test, after.test))


class Baseline(Frozen):
    """What was evaluated. Tensors of the predictions lie in the same file."""

    fold_id: str
    predictions: dict[str, str]  # by model and split
    stages: tuple[StageRecord, ...]


def evaluate_before(bench: Workbench) -> tuple[Evaluation | None, Evaluation]:
    """The merged model, if there is one, and the source as it came; as an earlier attempt at the
    very same fold has sealed it, if it did."""
    if (recalled := _recall(bench)) is not None:
        return recalled
    with bench.recorder.stage("baseline"):
        merged = None
        if bench.merged is not None:
            bench.load(bench.merged)
            merged = _evaluate(bench)
        bench.load(bench.source)
        source = _evaluate(bench, bench.source.match.known())
    _seal(bench, {"source": source} | ({"merged": merged} if merged else {}))
    return merged, source


def predict_test(bench: Workbench) -> Predictions:
    """Of what is in the module."""
    return predict(bench.model, bench.task, "test", bench.runtime, bench.config.refine.batch_size)


def _evaluate(bench: Workbench, known: Tensor | None = None) -> Evaluation:
    """What is in the module, of classes that are known."""
    size = bench.config.refine.batch_size
    val = predict(bench.model, bench.task, "val", bench.runtime, size, known)
    bench.recorder.tick(0.5, val_accuracy=val.metrics.accuracy)
    return Evaluation(val, predict(bench.model, bench.task, "test", bench.runtime, size, known))


def _seal(bench: Workbench, evaluations: dict[str, Evaluation]) -> None:
    predictions = {
        f"{model}/{split}": found
        for model, evaluation in evaluations.items()
        for split, found in (("val", evaluation.val), ("test", evaluation.test))
    }
    baseline = Baseline(
        fold_id=bench.fold_id,
        predictions={place: found.describe() for place, found in predictions.items()},
        stages=bench.recorder.stages_of(None),
    )
    tensors = {
        f"{place}/{name}": tensor
        for place, found in predictions.items()
        for name, tensor in found.tensors().items()
    }
    metadata = {"baseline": baseline.model_dump_json()}
    write_sealed(bench.work_dir / BASELINE_FILE, tensors, metadata)


def _recall(bench: Workbench) -> tuple[Evaluation | None, Evaluation] | None:
    try:
        saved = open_sealed(bench.work_dir / BASELINE_FILE)
        baseline = Baseline.model_validate_json(saved.metadata.get("baseline", ""))
    except (CheckpointError, ValidationError):
        return None
    if baseline.fold_id != bench.fold_id:
        return None
    bench.recorder.recall(baseline.stages)

    def read(model: str) -> Evaluation:
        val, test = (
            Predictions.read(
                baseline.predictions[f"{model}/{split}"],
                {name: saved[f"{model}/{split}/{name}"] for name in Predictions.TENSORS},
            )
            for split in ("val", "test")
        )
        return Evaluation(val, test)

    return (read("merged") if bench.merged is not None else None), read("source")
