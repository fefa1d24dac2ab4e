"""What a kind of problem declares, as data that loads no torch, and what it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from grasp_core.config import Frozen

if TYPE_CHECKING:
    from torch import nn

    from grasp_core.checkpoints import CheckpointInfo
    from grasp_core.data import Fractions, Limits, TargetData
    from grasp_core.spec import ModelSpec
    from grasp_core.tasks import Task

Progress = Callable[[float], None]


@dataclass(frozen=True)
class Kind:
    """A kind of problem: its targets, its architectures, and how the ones become inputs of the
    others.

    `overrides`, `preprocessing` and `augmentation` are pydantic classes of its own; a kind that has
    no such parameters leaves them as they are.
    """

    name: str
    summary: str  # in a sentence, for people
    examples: str  # what they are called, in the plural
    formats: str  # what its targets may be, as the end of a sentence
    architectures: str  # what names its architectures have
    load: Callable[[], Implementation]
    overrides: type[Frozen] = Frozen  # what a model may say of its preprocessing
    preprocessing: type[Frozen] = Frozen  # all of it, as its checkpoints say it
    augmentation: type[Frozen] = Frozen  # random changes in training: merge.refine.augmentation
    asked: tuple[str, ...] = ()  # numbers among the overrides that a form for models asks for
    names: Callable[[], frozenset[str]] | None = (
        None  # of all architectures; None: nobody lists them
    )
    libraries: tuple[str, ...] = ()  # packages that its results depend on, beside torch
    wrappers: tuple[str, ...] = ()  # attributes under which trainers keep the whole model


@dataclass(frozen=True)
class Export:
    """A model for those who do not know GRASP: files beside its weights, and words for its card."""

    spec: ModelSpec  # of the model that the files describe
    files: Mapping[str, str]  # texts, by name
    metadata: str  # the card's front matter
    title: str  # what such a model is, as the beginning of a sentence
    usage: str  # Markdown
    preprocessing: str  # Markdown


class Implementation(Protocol):
    """What a kind computes. A module will do."""

    def create(self, spec: ModelSpec) -> nn.Module:
        """The architecture on torch's default device, untrained.

        Raises ArchitectureError if there is none of that name, or not with these parameters.
        """

    def head(self, spec: ModelSpec) -> tuple[str, ...]:
        """Modules whose tensors have a row for every class."""

    def resolve_preprocessing(self, spec: ModelSpec) -> Frozen:
        """The architecture's own preprocessing, with what the user replaced."""

    def open_task(
        self,
        path: Path,
        spec: ModelSpec,
        *,
        cache_dir: Path | None,
        limits: Limits,
        fractions: Fractions | None,
        fingerprint: str | None,
        progress: Progress | None,
    ) -> Task:
        """The target at `path` as inputs of the architecture. Raises TargetError."""

    def open_target(
        self, path: Path, *, cache_dir: Path, limits: Limits, progress: Progress | None
    ) -> TargetData:
        """The same for no architecture, only to see what it is: as quick as it can be done."""

    def show_samples(self, target: TargetData) -> tuple[dict[str, str], ...]:
        """A few examples: class, split, and png (base64) or text; of one target always the same."""

    def describe_export(self, info: CheckpointInfo) -> Export:
        """What to put beside the weights of a checkpoint that says what it is."""
