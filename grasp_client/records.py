"""What the server says about things, and pages of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError
from typing_extensions import TypeVar

from grasp_client.errors import Misunderstood
from grasp_client.exchange import WRONG_SERVER, ask
from grasp_client.plans import Bound, C, Call, Plan, operation, stream

if TYPE_CHECKING:
    from grasp_client.client import AsyncGrasp, Grasp

LARGEST_PAGE = 200
Kind = TypeVar("Kind", bound="Record[Any]")


class Record(BaseModel, Bound[C]):
    """One thing as the server described it; fields that it adds one day are kept too."""

    model_config = ConfigDict(extra="allow", ignored_types=(operation, stream))

    _client: C = PrivateAttr()

    if not TYPE_CHECKING:

        def __class_getitem__(cls, _client: object) -> type[Self]:
            return cls  # whose client it is matters to type checkers alone

    def model_post_init(self, context: Any, /) -> None:
        self._client = context


def read(kind: type[Kind], client: Grasp | AsyncGrasp, data: object) -> Kind:
    """A record, and those inside it, which do things through this client."""
    try:
        return kind.model_validate(data, context=client)
    except ValidationError as error:
        raise Misunderstood(f"the answer is no {kind.__name__}", hint=WRONG_SERVER) from error


def get(kind: type[Kind], client: Grasp | AsyncGrasp, path: str) -> Plan[Kind]:
    answer = yield from ask(client, Call("GET", path))
    return read(kind, client, answer.json())


def list_all(
    kind: type[Kind],
    client: Grasp | AsyncGrasp,
    path: str,
    limit: int | None,
    filters: dict[str, Any],
) -> Plan[list[Kind]]:
    """Page after page, newest first: all, or `limit` of them."""
    found: list[Kind] = []
    wanted = {name: value for name, value in filters.items() if value is not None}
    while limit is None or len(found) < limit:
        left = LARGEST_PAGE if limit is None else min(LARGEST_PAGE, limit - len(found))
        answer = yield from ask(client, Call("GET", path, params={**wanted, "limit": left}))
        page = answer.json()
        found += [read(kind, client, item) for item in page["items"]]
        if page["next_cursor"] is None:
            break
        wanted["cursor"] = page["next_cursor"]
    return found
