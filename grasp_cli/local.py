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
from grasp_core.errors import GraspError as CoreError
from grasp_core.installation import advise_install

if TYPE_CHECKING:
    from grasp_client import Model

CONVERTED = frozenset({".pt", ".pth", ".ckpt", ".bin"})


@contextmanager
def as_safetensors(path: Path, model: Model, classes: Sequence[str] | None) -> Iterator[Path]:
    """The weights of a torch file, in a safetensors file that is gone afterwards.

    Raises GraspError, as the server would: a checkpoint of another model is not even sent.
    """
    with needing("torch", "converting"):
        from grasp_core import ModelSpec, convert_checkpoint
        from grasp_core.kinds import DEFAULT
    spec = None
    if model.classes is not None:  # and so the model is prepared
        spec = ModelSpec(
            kind=model.kind or DEFAULT,
            architecture=model.architecture,
            classes=tuple(model.classes),
            preprocessing=model.preprocessing,
        )
    with TemporaryDirectory() as folder:
        output = Path(folder, f"{path.stem}.safetensors")
        with needing("torch", "converting"):
            convert_checkpoint(path, output, spec=spec, classes=classes)
        yield output


def convert_file(
    path: Path,
    output: Path,
    kind: str,
    architecture: str | None,
    classes: Sequence[str] | None,
    *,
    ema: bool,
) -> str:
    """Write a torch file's weights as safetensors; return the sha256. Raises GraspError."""
    with needing("torch", "converting"):
        from grasp_core import convert_checkpoint

        return convert_checkpoint(
            path, output, kind=kind, architecture=architecture, classes=classes, ema=ema
        )


def export_folder(weights: Path, folder: Path, name: str, report: Mapping[str, Any]) -> None:
    """A folder that the architecture's own library loads, with a model card. Raises GraspError."""
    with needing("torch", "exporting"):
        from grasp_core import FoldReport
        from grasp_core import export_folder as export

        export(weights, folder, report=FoldReport.model_validate(report), name=name)


@contextmanager
def needing(extra: str, work: str) -> Iterator[None]:
    """What goes wrong here as errors of the client, and what is not installed as one of them."""
    try:
        yield
    except CoreError as error:
        fields = json.loads(json.dumps(error.fields()))  # as they come from a server
        said = {"code": error.code, "detail": error.message, "hint": error.hint}
        raise refusal(422, said | fields) from error
    except ImportError as error:
        raise GraspError(
            f"{work} needs {str(error.name).partition('.')[0]}, which is not installed here",
            hint=advise_install(extra),
        ) from error
