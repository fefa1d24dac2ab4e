"""What the stages of a fold share, and what a method makes of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from pydantic import JsonValue
from torch import Tensor, nn

from grasp_core.architectures import load_weights
from grasp_core.checkpoints import Checkpoint, write_computed
from grasp_core.config import FoldConfig
from grasp_core.errors import ConfigError
from grasp_core.heads import MatchedSource
from grasp_core.methods.declaration import AnyMethod
from grasp_core.progress import Recorder
from grasp_core.report import NamedFile, ParameterReport
from grasp_core.runtime import Runtime
from grasp_core.state import KEPT, describe_state, keep_file
from grasp_core.tasks import Task

COMPUTED_FILE, SCRATCH_FILE = "computed.safetensors", "scratch"  # gone as soon as they are mapped


@dataclass(frozen=True)
class Workbench:
    """One fold at work: a single module, a few memory-mapped files, and the target.

    Each candidate has it to itself for a while, with a folder and files of its own.
    """

    model: nn.Module
    merged: Mapping[str, Tensor] | None  # None: the source is the first
    source: MatchedSource
    base: MatchedSource | None  # None: there is none, or the method needs none
    task: Task
    config: FoldConfig
    runtime: Runtime
    recorder: Recorder
    seed: int
    work_dir: Path
    fold_id: str  # what an interrupted fold must have been to be resumed
    source_sha256: str
    candidate: str | None = None  # None: it is that of the fold as a whole
    method: AnyMethod | None = None  # the candidate's
    files: Mapping[str, Path] = field(default_factory=dict)  # what the method left, by name
    remembers: bool = True  # False: what a method leaves for the next fold has nowhere to go
    kept: dict[str, NamedFile] = field(default_factory=dict)

    def load(self, weights: Mapping[str, Tensor], *, exact: bool = False) -> None:
        """Put weights into the module; `exact` as in `load_weights`."""
        load_weights(self.model, weights, self.runtime.device, exact=exact)

    def load_computed(self, weights: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
        """Put weights into the module that are computed one by one, each when it is asked for: they
        go to a file, which the module maps, and are never in memory together. They have the shapes
        of others."""
        path = self.work_dir / COMPUTED_FILE
        write_computed(path, weights, like)
        self.load(Checkpoint(path), exact=True)
        path.unlink()  # what is mapped stays

    def scratch(self, shape: Sequence[int]) -> Tensor:
        """Zeros to add up in. On the CPU they lie in a file, so that the system can write out what
        does not fit in its memory."""
        if self.runtime.device.type != "cpu":
            return torch.zeros(*shape, device=self.runtime.device)
        path = self.work_dir / SCRATCH_FILE
        size = math.prod(shape)
        tensor = torch.from_file(str(path), shared=True, size=size, dtype=torch.float32)
        path.unlink()
        return tensor.view(*shape)

    @property
    def alignment_examples(self) -> int:
        """At most so many are in the alignment batches."""
        return self.config.alignment_batches * self.config.alignment_batch_size

    def remember(self, tensors: Mapping[str, Tensor]) -> Checkpoint:
        """What the method is given as its state when the next source is folded in.

        The tensors are read once, one by one, so that each may be computed when it is asked for.
        Returns the file that they are in then. Raises ConfigError if the method declares no state.
        """
        if self.method is None or self.method.state is None:
            name = self.method.name if self.method else "the fold"
            raise ConfigError(f"{name} remembers something and declares no state")
        name = self.method.state_name
        self.keep(name, tensors, describe_state(self.method))
        return Checkpoint(self.work_dir / KEPT / name)

    def keep(
        self, name: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
    ) -> None:
        """Make a file of the version to be, beside its weights: `state/…` of the method's own.

        The tensors are read once, one by one, so that each may be computed when it is asked for.
        """
        self.kept[name] = keep_file(self.work_dir, name, tensors, metadata or {})

    def given_rows(self, name: str) -> list[int] | None:
        """The rows of a parameter that the source can give to: it has them and, where the method
        compares with a base, so has that. None: all."""
        rows = self.source.matched_rows(name)
        known = self.base.matched_rows(name) if self.base is not None else None
        if rows is None or known is None:
            return known if rows is None else rows
        return [row for row in rows if row in known]

    def report(self, name: str, share: float, score: float | None = None) -> ParameterReport:
        """That the source gave `share` of a parameter, of the rows that it can give to."""
        parameter = self.model.get_parameter(name)
        rows = self.given_rows(name)
        if rows is not None:
            share *= len(rows) / len(parameter)
        return ParameterReport(
            name=name,
            size=parameter.numel(),
            transferred=bool(share) if share in (0.0, 1.0) else share,
            score=score,
        )

    def report_all(self, share: float) -> tuple[ParameterReport, ...]:
        """That the source gave the same share of every parameter."""
        return tuple(self.report(name, share) for name, _ in self.model.named_parameters())


@dataclass(frozen=True)
class Merge:
    """What a method did: the weights are in the module, the rest is here."""

    parameters: tuple[ParameterReport, ...]
    details: dict[str, JsonValue] = field(default_factory=dict)
