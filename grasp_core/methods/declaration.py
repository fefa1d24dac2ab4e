"""What a method says of itself: plain data, from which forms, pages, checks and errors are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from grasp_core.config import MethodConfig
from grasp_core.errors import ConfigError
from grasp_core.named_files import BASE, state_name

if TYPE_CHECKING:
    from torch import Tensor

    from grasp_core.workbench import Merge, Workbench

    State: TypeAlias = Mapping[str, Tensor]

Parameters = TypeVar("Parameters", bound=MethodConfig)


@dataclass(frozen=True)
class Stage:
    """A part of a fold that is timed and reported as one."""

    name: str
    title: str  # for people


BEFORE_MERGE = (Stage("load", "Load"), Stage("baseline", "Evaluate before"))
TRANSFER = Stage("transfer", "Transfer")  # in which every method puts its weights together
AFTER_MERGE = (
    Stage("recalibrate", "Recalibrate statistics"),
    Stage("refine", "Refine"),
    Stage("predict", "Predict"),
    Stage("evaluate", "Evaluate after"),
    Stage("publish", "Publish"),
)


@dataclass(frozen=True)
class Needs:
    """What a method cannot do without."""

    base: bool = False  # the model that all sources were fine-tuned from
    gradients: bool = False  # of the loss, on batches of the target
    history: bool = False  # its own state of all folds before: it cannot take over a merged model


@dataclass(frozen=True)
class Score:
    """What a method measures of every parameter to choose by."""

    name: str
    meaning: str  # a sentence or two, beside a chart of it
    threshold: str | None = None  # its name among the details of a report, if there is one
    symbol: str = ""  # of the threshold


@dataclass(frozen=True)
class Advice:
    """What to try where a source gave next to nothing, or next to everything."""

    too_little: str
    too_much: str


@dataclass(frozen=True)
class Method(Generic[Parameters]):
    """A way to fold a source into a merged model.

    `merge` leaves the merged weights in the workbench's module, and returns what it did. The state
    it is given is what it had the workbench remember at the version folded into, or None where
    there is none.
    """

    name: str
    summary: str  # a sentence
    paper: str | None  # its address
    parameters: type[Parameters]
    merge: Callable[[Workbench, Parameters, State | None], Merge]
    needs: Needs = field(default_factory=Needs)
    stages: tuple[Stage, ...] = ()  # its own, which come before `transfer`
    score: Score | None = None
    state: int | None = None  # version of the layout of its state; None: it remembers nothing
    uses_base: bool = False  # where there is one: it can do without
    advice: Advice | None = None  # None: a source may well give all, or next to nothing
    formula: str = ""  # of the merged weights θ
    remembers: str = ""  # what its state holds
    provenance: Literal["exact", "estimate"] = "exact"  # estimate: earlier shares may change, too

    @property
    def state_name(self) -> str:
        """Of the file of what it remembers."""
        return state_name(self.name)

    def reads(self, name: str) -> bool:
        """Whether a file of this name means something to it: a base, or what it left itself, of
        which there may be more: `state/mean`, `state/mean+squares`."""
        if name == BASE:
            return self.needs.base or self.uses_base
        return name == self.state_name or name.startswith(f"{self.state_name}+")

    def require_base(self, *, given: bool, hint: str) -> None:
        """Raises ConfigError where it needs a base and there is none; the hint says what to do."""
        if self.needs.base and not given:
            raise ConfigError(
                f"{self.name} needs a base: the model that all sources were fine-tuned from",
                hint=hint,
            )

    def require_beginning(self, *, first: bool) -> None:
        """Whether it can begin with no state of its own: always with a model's first source.

        Raises ConfigError.
        """
        if self.needs.history and not first:
            raise ConfigError(
                f"{self.name} cannot take over what was merged without it: it needs its own state"
                " of all folds before",
                hint="make a new model with this method, and send it the sources again",
            )


AnyMethod: TypeAlias = Method[Any]
