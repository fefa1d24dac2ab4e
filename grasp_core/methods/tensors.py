"""Methods that fold tensor by tensor, in constant state: what they have in common.

Such a method is a `Rule`. It says of one tensor how what a source brings is added to what is
remembered of those before it, and how what is remembered is combined into the merged tensor. All
else is here: task vectors and classes that a source lacks, fused matrices, buffers, and that no
more than one tensor is in memory at a time. What is remembered goes to a file first, and from
there, tensor by tensor, the merged weights to another, which the module maps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from grasp_core.heads import MatchedSource
from grasp_core.methods.task_vectors import TaskVectorConfig, alter
from grasp_core.workbench import Merge, Workbench

COUNTS = "counts"  # (C + 1,) sources that gave to each class, and to all else
SUM = "sum"  # the part of a state that goes by the tensor's own name
ENOUGH = 2**15  # entries of a tensor that tell which share of it a source gave
FUSED = {"qkv": 3, "kv": 2, "in_proj": 3, "in_proj_weight": 3}  # matrices that are kept as one

Parts = Mapping[str, Tensor]
Measure = Callable[[Mapping[str, Tensor], Tensor | None], Parts]  # of a model, and known classes


class Piece(dict[str, Tensor]):
    """What is remembered of a tensor, or of one of the matrices in it; at first, zero of all."""

    def __init__(self, parts: Parts, about: About) -> None:
        super().__init__(parts)
        self.about = about

    def __missing__(self, part: str) -> Tensor:
        return torch.zeros(())

    @property
    def count(self) -> Tensor:
        """() or (C, 1…): sources that gave to it, this one included."""
        return self.about.count

    @property
    def given(self) -> Tensor:
        """() or (C, 1…): 1.0 where this source does, 0.0 where it lacks a class."""
        return self.about.given

    @property
    def measured(self) -> Tensor:
        """What the rule's `measure` found of this tensor."""
        assert self.about.measured is not None  # noqa: S101 - as the rule says
        return self.about.measured


@dataclass(frozen=True)
class About:
    """Who gave to a tensor."""

    count: Tensor
    given: Tensor
    measured: Tensor | None = None


@dataclass(frozen=True)
class Rule:
    """How a method folds one tensor."""

    parts: tuple[str, ...]  # of what it remembers
    add: Callable[[Piece, Tensor], Parts]
    combine: Callable[[Piece], Tensor]
    share: Callable[[Piece, Tensor], Tensor] | None = None  # None: what all others have
    view: Callable[[str, Tensor], list[Tensor]] = lambda _, tensor: [tensor]  # as which pieces
    names: Collection[str] | None = None  # of parameters; others are averaged; None: it is for all
    measure: Measure | None = None
    totals: Mapping[str, Callable[[], Tensor]] = field(default_factory=dict)  # once all is added


def add_up(sums: Piece, vector: Tensor) -> Parts:
    """Σ of what sources bring."""
    return {SUM: sums[SUM] + vector}


def average(sums: Piece) -> Tensor:
    return sums[SUM] / sums.count.clamp(min=1)


AVERAGE = Rule((SUM,), add_up, average)


def find_matrices(bench: Workbench) -> set[str]:
    """The names of those parameters."""
    return {name for name, parameter in bench.model.named_parameters() if is_matrix(parameter)}


def is_matrix(tensor: Tensor) -> bool:
    """Of a linear layer, or a convolution whose channels mix; tokens and positions are none."""
    return tensor.ndim > 1 and min(tensor.shape[:2]) > 1


def as_matrix(_: str, tensor: Tensor) -> list[Tensor]:
    """(out, in): a convolution's kernels are rows."""
    return [tensor.flatten(1)]


def as_unfused(name: str, tensor: Tensor) -> list[Tensor]:
    """The matrices that are fused into one, such as those of queries, keys and values."""
    if not is_matrix(tensor):
        return [tensor]
    layer = name.removesuffix(".weight").rpartition(".")[2]
    return list(tensor.flatten(1).chunk(FUSED.get(layer, 1)))


def fold_tensors(
    bench: Workbench, rule: Rule, state: Parts | None, vectors: TaskVectorConfig | None = None
) -> Merge:
    """Fold the source in, and leave the merged weights in the module.

    With a base, what a source brings are task vectors, altered as `vectors` says.
    """
    sums = Sums(bench, rule, state, vectors)
    with bench.recorder.stage("transfer"):
        remembered = bench.remember(sums)
        bench.load_computed(Merged(bench, sums, remembered), bench.source)
        names = [name for name, _ in bench.model.named_parameters()]
        reports = tuple(bench.report(name, sums.shares[name]) for name in names)
        return Merge(reports, details={"sources": int(sums.counts[-1])})


class Sums(Mapping[str, Tensor]):
    """What is remembered of all sources, this one included: each part when it is asked for.

    Without a state, a merged model counts as one source.
    """

    def __init__(
        self, bench: Workbench, rule: Rule, state: Parts | None, vectors: TaskVectorConfig | None
    ) -> None:
        self.rule, self._bench, self._state, self._vectors = rule, bench, state, vectors
        self.shares: dict[str, float] = {}  # of each parameter, that the source gave
        self._parameters = [name for name, _ in bench.model.named_parameters()]
        self.counts = self._count(1)
        self._measured = self._measure(bench.source, bench.source.match.known())
        self._measured_before: Parts = {}
        if state is None and bench.merged is not None:
            self._measured_before = self._measure(bench.merged, None)
        self._places = self._plan()
        self._newest: tuple[str, list[Parts]] = ("", [])

    def __getitem__(self, key: str) -> Tensor:
        if key == COUNTS:
            return self.counts
        if key in self.rule.totals:
            return self.rule.totals[key]()
        name, number, part = self._places[key]
        if self._newest[0] != name:
            self._newest = (name, self._add(name))
        return self._newest[1][number][part]

    def __iter__(self) -> Iterator[str]:
        return iter([COUNTS, *self._places, *self.rule.totals])

    def __len__(self) -> int:
        return len(self._places) + len(self.rule.totals) + 1

    def rule_for(self, name: str) -> Rule:
        """Buffers are averaged, whatever the method: a variance below zero is none."""
        names = self._parameters if self.rule.names is None else self.rule.names
        return self.rule if name in names else AVERAGE

    def about(self, name: str, counts: Tensor | None = None) -> About:
        counts = self.counts if counts is None else counts
        measured = self._measured.get(name)
        if not self._bench.source.is_head(name):
            return About(counts[-1], torch.ones(()), measured)
        shape = (-1, *[1] * (self._bench.source[name].ndim - 1))
        given = torch.ones(len(counts) - 1)
        rows = self._bench.given_rows(name)
        if rows is not None:
            given.zero_()[rows] = 1.0
        return About(counts[:-1].view(shape), given.view(shape), measured)

    def piece(self, name: str, number: int, kept: Parts) -> Piece:
        """As a file remembers it."""
        parts = self.rule_for(name).parts
        return Piece({part: kept[_key(name, number, part)] for part in parts}, self.about(name))

    def _plan(self) -> dict[str, tuple[str, int, str]]:
        places = {}
        for name, tensor in self._bench.source.items():
            if tensor.is_floating_point():
                rule = self.rule_for(name)
                for number, _ in enumerate(rule.view(name, tensor)):
                    for part in rule.parts:
                        places[_key(name, number, part)] = (name, number, part)
        return places

    def _add(self, name: str) -> list[Parts]:
        rule, about = self.rule_for(name), self.about(name)
        vector = self._vector(name, self._bench.source)
        if about.given.ndim:
            vector = vector * about.given
        if self._vectors is not None and name in self._parameters:
            depth = self._parameters.index(name) / max(len(self._parameters) - 1, 1)
            vector = alter(vector, self._vectors, (self._bench.source_sha256, name), depth)
        pieces = rule.view(name, vector)
        before = [Piece(self._before(name, number), about) for number in range(len(pieces))]
        parts = [rule.add(*each) for each in zip(before, pieces, strict=True)]
        if name in self._parameters:
            after = [Piece(each, about) for each in parts]
            self.shares[name] = self._share(rule, after, pieces)
        self._bench.recorder.tick(0.5 * len(self.shares) / len(self._parameters))
        return parts

    def _before(self, name: str, number: int) -> Parts:
        """What is remembered of the sources before this one."""
        if self._state is not None:
            return self.piece(name, number, self._state)
        if self._bench.merged is None:
            return {}
        about = self.about(name, self._count(0))
        about = About(about.count, about.count.float(), self._measured_before.get(name))
        vector = self._vector(name, self._bench.merged) * about.given
        rule = self.rule_for(name)
        return rule.add(Piece({}, about), rule.view(name, vector)[number])

    def _vector(self, name: str, weights: Mapping[str, Tensor]) -> Tensor:
        """What a model brings: its difference from the base, where there is one."""
        base = self._bench.base
        own = weights[name].float()
        return own if base is None else own - base[name].float()

    def _share(self, rule: Rule, pieces: list[Piece], vectors: list[Tensor]) -> float:
        """Of the rows that the source gives to; of a large tensor, of some entries of each row."""
        given = pieces[0].given
        if rule.share is None:
            shares = given.double() / pieces[0].count.clamp(min=1)
        else:
            each = zip(pieces, vectors, strict=True)
            shares = torch.cat([rule.share(*_thin_out(*both)).flatten() for both in each])
        mean = shares.sum(dtype=torch.float64) / shares.numel()
        return float(mean / given.double().mean().clamp(min=1e-12))

    def _measure(self, weights: Mapping[str, Tensor], known: Tensor | None) -> Parts:
        return self.rule.measure(weights, known) if self.rule.measure is not None else {}

    def _count(self, this: int) -> Tensor:
        """Of sources, with this one (1) or without it (0)."""
        match = self._bench.source.match
        counts = torch.zeros(match.count + 1, dtype=torch.int64)
        if self._state is not None:
            counts += self._state[COUNTS]
        elif self._bench.merged is not None:
            counts[[*self._base_rows(), match.count]] = 1
        if this:
            given = [row for row in match.merged if row in set(self._base_rows())]
            counts[[*given, match.count]] += 1
        return counts

    def _base_rows(self) -> range | tuple[int, ...]:
        """Those of classes that the base knows: all, without one."""
        base: MatchedSource | None = self._bench.base
        return range(self._bench.source.match.count) if base is None else base.match.merged


class Merged(Mapping[str, Tensor]):
    """The weights that the sums stand for; what nobody gave to stays as it is."""

    def __init__(self, bench: Workbench, sums: Sums, kept: Parts) -> None:
        self._bench, self._sums, self._kept = bench, sums, kept
        self._before = bench.merged if bench.merged is not None else bench.source

    def __getitem__(self, name: str) -> Tensor:
        before = self._before[name]
        if not before.is_floating_point():
            return before
        rule = self._sums.rule_for(name)
        numbers = range(len(rule.view(name, before)))
        pieces = [self._sums.piece(name, number, self._kept) for number in numbers]
        combined = [rule.combine(piece) for piece in pieces]
        merged = (torch.cat(combined) if len(combined) > 1 else combined[0]).reshape(before.shape)
        if self._bench.base is not None:
            merged = merged + self._bench.base[name].float()
        count = pieces[0].count
        return merged.where(count > 0, before.float()) if count.ndim else merged

    def __iter__(self) -> Iterator[str]:
        return iter(self._before)

    def __len__(self) -> int:
        return len(self._before)


def _thin_out(piece: Piece, vector: Tensor) -> tuple[Piece, Tensor]:
    """The same with some columns of each row, where there are very many entries."""
    step = vector.numel() // ENOUGH
    if step <= 1 or vector.ndim < 2:
        return piece, vector
    about = piece.about
    if about.measured is not None:
        about = About(about.count, about.given, about.measured[:, ::step])
    return Piece({part: t[:, ::step] for part, t in piece.items()}, about), vector[:, ::step]


def _key(name: str, number: int, part: str) -> str:
    """Under which a state keeps a part."""
    place = f"{name}#{number}" if number else name
    return place if part == SUM else f"{part}/{place}"
