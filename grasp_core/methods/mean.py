"""The running mean of all sources, as they came: the paper's Multi-Source, a uniform model soup.

https://arxiv.org/abs/2203.05482

    θ = (θ1 + … + θk) / k

The state is the sum and the count, so that fold by fold the mean is that of all sources at once;
what refinement did to a version never enters it. A row of the head is the mean of those sources
that know its class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from grasp_core.config import MethodConfig
from grasp_core.methods.declaration import Method

if TYPE_CHECKING:
    from torch import Tensor

    from grasp_core.methods.declaration import State
    from grasp_core.workbench import Merge, Workbench

COUNTS = "counts"  # (C,) sources that know each class, and (C + 1)th all of them


class MeanConfig(MethodConfig):
    """Averages all sources with equal weights."""

    method: Literal["mean"] = "mean"


def merge(bench: Workbench, parameters: MeanConfig, state: State | None) -> Merge:
    """Add the source to the sums, and leave their mean in the module."""
    from grasp_core.workbench import Merge

    del parameters  # it has none of its own
    with bench.recorder.stage("transfer"):
        sums = Sums(bench, state)
        bench.load(Means(bench, sums))
        count = sums.count
        return Merge(bench.report_all(1 / count), details={"sources": count}, state=sums)


class Sums(Mapping[str, "Tensor"]):
    """What all sources add up to, this one included, each tensor when it is asked for.

    Without a state, a merged model counts as one source.
    """

    def __init__(self, bench: Workbench, state: State | None) -> None:
        self._source = bench.source
        self._before = state if state is not None else bench.merged
        self._names = [name for name in bench.source if bench.source[name].is_floating_point()]
        self._counts = self._counted(state, merged=bench.merged is not None)

    @property
    def count(self) -> int:
        return int(self._counts[-1])

    def counts_of(self, name: str) -> Tensor:
        """Of sources that have this tensor, or each row of it."""
        if not self._source.is_head(name):
            return self._counts[-1]
        rows = self._counts[:-1]
        return rows.view(-1, *[1] * (self._source[name].ndim - 1))

    def __getitem__(self, name: str) -> Tensor:
        if name == COUNTS:
            return self._counts
        own = self._source[name].float()
        rows = self._source.matched_rows(name)
        before = (
            self._before[name].float() if self._before is not None else own.new_zeros(own.shape)
        )
        if rows is None:
            return before + own
        total = before.clone()
        total[rows] += own[rows]
        return total

    def __iter__(self) -> Iterator[str]:
        return iter([COUNTS, *self._names])

    def __len__(self) -> int:
        return len(self._names) + 1

    def _counted(self, state: State | None, *, merged: bool) -> Tensor:
        import torch

        match = self._source.match
        new = torch.zeros(match.count + 1, dtype=torch.int64)
        new[[*match.merged, match.count]] = 1
        if state is not None:
            return state[COUNTS] + new
        return new + 1 if merged else new


class Means(Mapping[str, "Tensor"]):
    """The weights that the sums stand for; what cannot be averaged stays as it is."""

    def __init__(self, bench: Workbench, sums: Sums) -> None:
        self._sums = sums
        self._kept = bench.merged if bench.merged is not None else bench.source

    def __getitem__(self, name: str) -> Tensor:
        kept = self._kept[name]
        if not kept.is_floating_point():
            return kept
        counts = self._sums.counts_of(name)
        mean = self._sums[name] / counts.clamp(min=1)
        return mean.where(counts > 0, kept.float())

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


METHOD = Method(
    name="mean",
    summary="Averages all sources, each with the same weight.",
    paper="https://arxiv.org/abs/2203.05482",
    parameters=MeanConfig,
    merge=merge,
    state=1,
)
