"""How long refinement lasts, when it looks at validation, and the learning rate of every step."""

from __future__ import annotations

import math

from grasp_core.config import RefineConfig

LOOKS = 10  # at even points, beside the one at the start
WARM_UP = 0.1  # of all steps


class Schedule:
    """By step: a linear warm-up, then a cosine to zero. By epoch, as in the paper: a cosine that
    falls after each of them, and a look then."""

    def __init__(self, config: RefineConfig, steps_per_epoch: int) -> None:
        self.steps = config.budget(steps_per_epoch)
        self.steps_per_epoch = steps_per_epoch
        self._by_epoch = config.schedule == "epoch"
        self._warm_up = math.ceil(self.steps * WARM_UP)

    @property
    def looks(self) -> tuple[int, ...]:
        """After how many steps validation is looked at; 0: before the first."""
        if self._by_epoch:
            return (*range(self.steps_per_epoch, self.steps, self.steps_per_epoch), self.steps)
        return tuple(sorted({round(self.steps * look / LOOKS) for look in range(LOOKS + 1)}))

    def part(self, look: int) -> int:
        """Which part of the training ends with that look, from 1."""
        return sum(0 < each <= look for each in self.looks)

    def look_after(self, share: float) -> int:
        """The first look at or after that share of all steps."""
        return next(look for look in self.looks if look >= share * self.steps)

    @property
    def criterion(self) -> str:
        """The field of a look by which the best is chosen."""
        return "val_accuracy" if self._by_epoch else "val_log_likelihood"

    def factor(self, step: int) -> float:
        """Of the learning rate, for the step after so many others."""
        if self._by_epoch:
            epochs = math.ceil(self.steps / self.steps_per_epoch)
            return _cosine(step // self.steps_per_epoch / epochs)
        if step < self._warm_up:
            return (step + 1) / self._warm_up
        return _cosine((step - self._warm_up) / (self.steps - self._warm_up))


def _cosine(share: float) -> float:
    """From one to zero."""
    return (1 + math.cos(math.pi * share)) / 2
