"""How one code serves both `Grasp` and `AsyncGrasp`.

Every operation is written once, as a *plan*: a generator that yields steps, gets what came of each
of them, and returns its result. A plan does no input or output over the network itself, and does
not know who takes its steps:

    @operation
    def get(self, job: str) -> Plan[Job[C]]:
        answer = yield from ask(self._client, Call("GET", at("jobs", job)))
        return read(Job, self._client, answer.json())

`@operation` makes a method of it. On what belongs to a `Grasp` the method takes all the steps and
returns the result; on what belongs to an `AsyncGrasp` it gives an awaitable that does. `@stream` is
the same for plans that tell things on their way (`Tell`): an iterator, or an asynchronous one. Type
checkers see the right one of the two, with the plan's own parameters.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    ParamSpec,
    TypeAlias,
    overload,
)
from urllib.parse import quote

from typing_extensions import TypeVar

if TYPE_CHECKING:
    from grasp_client.bodies import FileBody
    from grasp_client.client import AsyncGrasp, Grasp

P = ParamSpec("P")
Result = TypeVar("Result")
Item = TypeVar("Item")
C = TypeVar("C", bound="Grasp | AsyncGrasp", default="Grasp")


def at(*parts: object) -> str:
    """A path, in which each part stays one whatever characters it has."""
    return "/" + "/".join(quote(str(part), safe="") for part in parts)


@dataclass(frozen=True)
class Call:
    """One HTTP request."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    body: FileBody | None = None
    timeout: float = math.inf  # where it is shorter than the client's


@dataclass(frozen=True)
class Open:
    """Send a request; gives the response without its body. The one before is closed."""

    call: Call


@dataclass(frozen=True)
class Read:
    """Gives the next bytes of the open response; none at its end."""


@dataclass(frozen=True)
class Sleep:
    seconds: float


@dataclass(frozen=True)
class Do:
    """Work that takes its time, and gives what the function returns: in a thread, where async."""

    work: Callable[[], Any]


@dataclass(frozen=True)
class Tell(Generic[Item]):
    """Something for whoever iterates."""

    value: Item


Step: TypeAlias = Open | Read | Sleep | Do | Tell[Any]
Plan: TypeAlias = Generator[Step, Any, Result]
Telling: TypeAlias = Generator[Open | Read | Sleep | Do | Tell[Item], Any, None]


class Course(Generic[Result]):
    """A plan on its way: the step it wants next, and in the end its result."""

    step: Step
    result: Result

    def __init__(self, plan: Plan[Result]) -> None:
        self._plan = plan
        self._resume: Callable[[], Step] = partial(plan.send, None)

    def advance(self) -> bool:
        """Go on to the next step. False: there is none, the result is known."""
        try:
            self.step = self._resume()
        except StopIteration as end:
            self.result = end.value
            return False
        return True

    def answer(self, value: object) -> None:
        self._resume = partial(self._plan.send, value)

    def fail(self, error: BaseException) -> None:
        self._resume = partial(self._plan.throw, error)


class Bound(Generic[C]):
    """What belongs to a client, and does things through it."""

    _client: C


class _Method:
    """Makes a method of a plan: whoever it belongs to has its client take the steps."""

    taken_by: ClassVar[str]  # the client's method that does

    def __init__(self, plan: Callable[..., Any]) -> None:
        self.plan = plan
        update_wrapper(self, plan)  # type: ignore[arg-type]

    def _bind(self, bound: Any) -> Any:
        if bound is None:
            return self

        def method(*args: Any, **kwargs: Any) -> Any:
            return getattr(bound._client, self.taken_by)(self.plan(bound, *args, **kwargs))

        return update_wrapper(method, self.plan)


class operation(_Method, Generic[P, Result]):  # noqa: N801 - it is used as a decorator
    """A plan as a method; see the module's docstring."""

    taken_by = "run"

    def __init__(self, plan: Callable[Concatenate[Any, P], Plan[Result]]) -> None:
        super().__init__(plan)

    @overload
    def __get__(self, bound: Bound[Grasp], owner: object = None) -> Callable[P, Result]: ...
    @overload
    def __get__(
        self, bound: Bound[AsyncGrasp], owner: object = None
    ) -> Callable[P, Awaitable[Result]]: ...
    @overload
    def __get__(self, bound: Bound[Any] | None, owner: object = None) -> Any: ...
    def __get__(self, bound: Any, owner: object = None) -> Any:
        return self._bind(bound)


class stream(_Method, Generic[P, Item]):  # noqa: N801
    """A plan that tells things, as a method; see the module's docstring."""

    taken_by = "iterate"

    def __init__(self, plan: Callable[Concatenate[Any, P], Telling[Item]]) -> None:
        super().__init__(plan)

    @overload
    def __get__(self, bound: Bound[Grasp], owner: object = None) -> Callable[P, Iterator[Item]]: ...
    @overload
    def __get__(
        self, bound: Bound[AsyncGrasp], owner: object = None
    ) -> Callable[P, AsyncIterator[Item]]: ...
    @overload
    def __get__(self, bound: Bound[Any] | None, owner: object = None) -> Any: ...
    def __get__(self, bound: Any, owner: object = None) -> Any:
        return self._bind(bound)
