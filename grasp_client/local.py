"""What needs torch, on the user's own machine: converting before a push, exporting after a pull.

Loaded by the commands that need it; nothing else of this package imports grasp_core.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from grasp_client.errors import GraspError, refusal
from grasp_core.errors import CheckpointMismatch
from grasp_core.errors import GraspError as CoreError

if TYPE_CHECKING:
    from grasp_client import Model

CONVERTED = frozenset({".pt", ".pth", ".ckpt", ".bin"})
UNLIKELY = 7919  # outputs: no other tensor of a head has as many rows


@contextmanager
def as_safetensors(path: Path, model: Model, classes: Sequence[str] | None) -> Iterator[Path]:
    """The weights of a torch file, in a safetensors file that is gone afterwards.

    Raises GraspError, as the server would: a checkpoint of another model is not even sent.
    """
    with needing("worker", "converting"):
        from grasp_core import ModelSpec, PreprocessingOverrides, convert_checkpoint
    spec = None
    if model.classes is not None:  # and so the model is prepared
        spec = ModelSpec(
            architecture=model.architecture,
            classes=tuple(model.classes),
            preprocessing=PreprocessingOverrides.model_validate(model.preprocessing),
        )
    with TemporaryDirectory() as folder:
        output = Path(folder, f"{path.stem}.safetensors")
        with needing("worker", "converting"):
            convert_checkpoint(path, output, spec=spec, classes=classes)
        yield output


def convert_file(
    path: Path,
    output: Path,
    architecture: str | None,
    classes: tuple[str, ...] | None,
    *,
    ema: bool,
) -> str:
    """Write a torch file's weights as safetensors; return the sha256. Raises GraspError."""
    with needing("worker", "converting"):
        from grasp_core import ModelSpec, convert_checkpoint

        if architecture and not classes:
            return _convert_unnamed(path, output, architecture, ema=ema)
        spec = ModelSpec(architecture=architecture, classes=classes) if architecture else None
        return convert_checkpoint(path, output, spec=spec, classes=classes, ema=ema)


def _convert_unnamed(path: Path, output: Path, architecture: str, *, ema: bool) -> str:
    """As this architecture, with as many outputs as the file has; what they mean, nobody knows."""
    from grasp_core import (
        Checkpoint,
        ModelSpec,
        convert_checkpoint,
        make_manifest,
        write_checkpoint,
    )

    def spec(count: int) -> ModelSpec:
        return ModelSpec(architecture=architecture, classes=tuple(map(str, range(count))))

    asked = spec(UNLIKELY)
    output.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
        checked = Path(folder, "checked")
        try:
            convert_checkpoint(path, checked, spec=asked, ema=ema)
        except CheckpointMismatch as error:
            heads = make_manifest(asked).heads() & error.mismatches.wrong_shape.keys()
            counts = {error.mismatches.wrong_shape[name][1][0] for name in heads}
            if len(counts) != 1:
                raise
            convert_checkpoint(path, checked, spec=spec(counts.pop()), ema=ema)
        weights = Checkpoint(checked)
        info = weights.info.model_copy(update={"classes": None})
        return write_checkpoint(output, weights, info)


def export_folder(weights: Path, folder: Path, name: str, report: Mapping[str, Any]) -> None:
    """A folder that timm loads, with a model card. Raises GraspError."""
    with needing("worker", "exporting"):
        from grasp_core import FoldReport, export_timm_folder

        export_timm_folder(weights, folder, report=FoldReport.model_validate(report), name=name)


@contextmanager
def needing(extras: str, work: str) -> Iterator[None]:
    """What goes wrong here as errors of the client, and what is not installed as one of them."""
    try:
        yield
    except CoreError as error:
        problem: dict[str, Any] = {"code": error.code, "detail": error.message, "hint": error.hint}
        if isinstance(error, CheckpointMismatch):
            problem["mismatches"] = json.loads(json.dumps(error.mismatches._asdict()))
        raise refusal(422, problem) from error
    except ImportError as error:
        raise GraspError(
            f"{work} needs {str(error.name).partition('.')[0]}, which is not installed here",
            hint=f"install grasp-merge[{extras}], or do it on a machine that has it",
        ) from error
