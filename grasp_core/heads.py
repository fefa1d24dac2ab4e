"""Sources that know other classes than the model: head rows are matched by class name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ClassMatch:
    """Rows of the merged head, and the rows of the source's head that mean the same classes."""

    merged: tuple[int, ...]
    source: tuple[int, ...]
    count: int  # rows of the merged head

    @property
    def partial(self) -> bool:
        """Whether the source lacks some of the model's classes."""
        return len(self.merged) < self.count

    def known(self) -> Tensor | None:
        """Mask (C,) of the classes in the source's loss; None for all of them.

        Without any common class the source is judged with the merged head, on all classes.
        """
        if not self.partial or not self.merged:
            return None
        mask = torch.zeros(self.count, dtype=torch.bool)
        mask[list(self.merged)] = True
        return mask


def match_classes(classes: Sequence[str], source_classes: Sequence[str] | None) -> ClassMatch:
    """Match by name or, if the source has no names, by position."""
    source = {name: row for row, name in enumerate(source_classes or classes)}
    common = [(row, source[name]) for row, name in enumerate(classes) if name in source]
    return ClassMatch(
        merged=tuple(row for row, _ in common),
        source=tuple(row for _, row in common),
        count=len(classes),
    )


class MatchedSource(Mapping[str, Tensor]):
    """A source's weights as if it had the model's classes, in the model's order.

    Rows of classes it lacks are the merged model's; zero while there is no merged model.
    """

    def __init__(
        self,
        source: Mapping[str, Tensor],
        merged: Mapping[str, Tensor] | None,
        heads: frozenset[str],
        match: ClassMatch,
    ) -> None:
        self._source = source
        self._merged = merged
        self._heads = heads
        self.match = match

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._source[name]
        if not self.is_head(name):
            return tensor
        rows = self._fallback(name, tensor)
        rows[list(self.match.merged)] = tensor[list(self.match.source)].to(rows.dtype)
        return rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._source)

    def __len__(self) -> int:
        return len(self._source)

    def is_head(self, name: str) -> bool:
        """Whether `name` has a row for every class."""
        return name in self._heads

    def matched_rows(self, name: str) -> list[int] | None:
        """The rows of `name` that the source really has; None for all of them."""
        return list(self.match.merged) if self.is_head(name) and self.match.partial else None

    def _fallback(self, name: str, tensor: Tensor) -> Tensor:
        if self._merged is not None:
            return self._merged[name].clone()
        return torch.zeros(self.match.count, *tensor.shape[1:])
