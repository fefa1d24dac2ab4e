"""What tensors a model has, as plain data that can be compared anywhere, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, islice, takewhile
from typing import Literal, NamedTuple

from grasp_core.config import Frozen
from grasp_core.errors import CheckpointMismatch, shorten

SHOWN = 10  # names per kind of mismatch in a message; the error's attributes have them all
SHOWN_CHARACTERS = 100  # of each of them
NAME_CLASSES = "only the head differs: give the source's class names, in the order of its outputs"
TRAIN_AS = "make sure that the checkpoint was trained as {}"
FLOATS = frozenset({"F16", "BF16", "F32", "F64"})


class TensorSpec(Frozen):
    """One tensor of a model: its shape, its safetensors dtype, and its part in the model."""

    shape: tuple[int, ...]
    dtype: str
    kind: Literal["parameter", "buffer"]
    head: bool = False  # its first axis counts classes

    def with_classes(self, count: int) -> TensorSpec:
        """The same tensor in a model that has `count` classes."""
        if not self.head:
            return self
        return self.model_copy(update={"shape": (count, *self.shape[1:])})


class Found(NamedTuple):
    """What a file says about one of its tensors."""

    shape: tuple[int, ...]
    dtype: str


class Mismatches(NamedTuple):
    """All that keeps a file from being a checkpoint of a model, by tensor name."""

    missing: list[str]
    unexpected: list[str]
    wrong_shape: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]  # name: (expected, found)
    wrong_dtype: dict[str, tuple[str, str]]

    def __bool__(self) -> bool:
        return any(self)

    def within(self, characters: int) -> tuple[Mismatches, dict[str, int]]:
        """The first of each kind, whose names have so many characters, and how many are left out.

        A stranger's file may have tens of thousands of long names.
        """
        counts = {kind: _count_within(names, characters) for kind, names in self._asdict().items()}
        left_out = {kind: len(getattr(self, kind)) - count for kind, count in counts.items()}
        return Mismatches(
            self.missing[: counts["missing"]],
            self.unexpected[: counts["unexpected"]],
            dict(islice(self.wrong_shape.items(), counts["wrong_shape"])),
            dict(islice(self.wrong_dtype.items(), counts["wrong_dtype"])),
        ), {kind: count for kind, count in left_out.items() if count}

    def describe(self) -> str:
        kinds = {
            "missing": self.missing,
            "unexpected": self.unexpected,
            "of another shape": [
                f"{name} {list(found)} instead of {list(expected)}"
                for name, (expected, found) in self.wrong_shape.items()
            ],
            "of another type": [
                f"{name} {found} instead of {expected}"
                for name, (expected, found) in self.wrong_dtype.items()
            ],
        }
        return "; ".join(
            f"{len(names)} {kind}: {_shortened(names)}" for kind, names in kinds.items() if names
        )


class Manifest(Frozen):
    """The tensors of one architecture with one number of classes."""

    architecture: str
    classes: int
    tensors: dict[str, TensorSpec]

    def parameters(self) -> Iterator[str]:
        return (name for name, spec in self.tensors.items() if spec.kind == "parameter")

    def heads(self) -> frozenset[str]:
        return frozenset(name for name, spec in self.tensors.items() if spec.head)

    def compare(self, found: Mapping[str, Found], classes: int | None = None) -> Mismatches:
        """Everything in which a file differs from this model, if it has `classes` classes."""
        count = self.classes if classes is None else classes
        expected = {name: spec.with_classes(count) for name, spec in self.tensors.items()}
        both = {name: (spec, found[name]) for name, spec in expected.items() if name in found}
        return Mismatches(
            missing=[n for n in expected if n not in found and not _optional(n)],
            unexpected=[n for n in found if n not in expected],
            wrong_shape={
                n: (spec.shape, file.shape)
                for n, (spec, file) in both.items()
                if spec.shape != file.shape
            },
            wrong_dtype={
                n: (spec.dtype, file.dtype)
                for n, (spec, file) in both.items()
                if (spec.dtype in FLOATS) != (file.dtype in FLOATS)
            },
        )

    def require(self, found: Mapping[str, Found], *, name: str, classes: int | None = None) -> None:
        """Raise CheckpointMismatch, with every difference, unless the file `name` fits."""
        mismatches = self.compare(found, classes)
        if mismatches:
            only_head = self._is_head_alone(mismatches)
            raise CheckpointMismatch(
                f"{name} is not a {self.architecture} checkpoint: {mismatches.describe()}",
                hint=NAME_CLASSES if only_head else TRAIN_AS.format(self.architecture),
                mismatches=mismatches,
                file=name,
                architecture=self.architecture,
                only_head=only_head,
            )

    def _is_head_alone(self, mismatches: Mismatches) -> bool:
        others = (mismatches.missing, mismatches.unexpected, mismatches.wrong_dtype)
        return set(mismatches.wrong_shape) <= self.heads() and not any(others)


def _optional(name: str) -> bool:
    # Counts steps for a momentum nobody uses here; checkpoints of old torch versions lack it.
    return name.endswith("num_batches_tracked")


def _count_within(names: Iterable[str], characters: int) -> int:
    lengths = accumulate(map(len, names))
    return sum(1 for _ in takewhile(lambda length: length <= characters, lengths))


def _shortened(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(shorten(name, SHOWN_CHARACTERS) for name in names[:SHOWN]) + more
