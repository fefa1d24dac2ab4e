"""A method of the tests' own: the base and the sum of all task vectors, which it remembers.

θ = base + λ Σ (θk - base), with Σ as its state, in float64, and how many sources it is of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from grasp_core.config import Fraction, MethodConfig
from grasp_core.methods.declaration import Method, Needs, Score, Stage
from grasp_core.workbench import Merge, Workbench

COUNT = "count"


class ShadowConfig(MethodConfig):
    """Sums of task vectors."""

    method: Literal["shadow"] = "shadow"
    scale: Fraction = Field(0.5, description="λ, of the sum.")


class NextSums(Mapping[str, Tensor]):
    """Computed when asked for; says how often each was."""

    def __init__(self, bench: Workbench, before: Mapping[str, Tensor] | None) -> None:
        self.bench = bench
        self.before = before
        self.asked: list[str] = []

    def __getitem__(self, name: str) -> Tensor:
        self.asked.append(name)
        if name == COUNT:
            return torch.tensor(1 if self.before is None else int(self.before[COUNT]) + 1)
        assert self.bench.base is not None
        moved = self.bench.source[name].double() - self.bench.base[name].double()
        rows = self.bench.given_rows(name)
        if rows is not None:
            moved[[row for row in range(len(moved)) if row not in rows]] = 0
        return moved if self.before is None else self.before[name] + moved

    def __iter__(self) -> Iterator[str]:
        return iter([*(name for name, _ in self.bench.model.named_parameters()), COUNT])

    def __len__(self) -> int:
        return len(list(iter(self)))


MADE: list[NextSums] = []


def merge(bench: Workbench, parameters: ShadowConfig, state: Mapping[str, Tensor] | None) -> Merge:
    assert bench.base is not None
    sums = NextSums(bench, state)
    names = [name for name in sums if name != COUNT]
    with bench.recorder.stage("sum"):
        moved = {name: parameters.scale * sums[name] for name in names}
    with bench.recorder.stage("transfer"):
        weights = {name: bench.source[name].clone() for name in bench.source}
        for name in names:
            rows = bench.base.matched_rows(name)
            where = slice(None) if rows is None else rows
            sums_of_rows = bench.base[name].double() + moved[name]
            weights[name][where] = sums_of_rows[where].to(weights[name].dtype)
        bench.load(weights)
    sums.asked.clear()
    MADE.append(sums)
    bench.remember(sums)
    count = int(sums.before[COUNT]) + 1 if sums.before is not None else 1
    return Merge(
        parameters=tuple(
            bench.report(name, 1 / count, float(moved[name].abs().mean())) for name in names
        ),
        details={"count": count},
    )


SHADOW = Method(
    name="shadow",
    summary="Adds up task vectors.",
    paper="https://arxiv.org/abs/2212.04089",
    parameters=ShadowConfig,
    merge=merge,
    needs=Needs(base=True),
    stages=(Stage("sum", "Add up"),),
    score=Score("movement", "How far each parameter moved."),
    state=1,
)
