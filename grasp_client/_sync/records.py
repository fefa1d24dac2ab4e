# Written by `make client` from grasp_client/_async/records.py: change that one.
"""What the server says about things, and where it says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, PrivateAttr

from grasp_client import protocol

if TYPE_CHECKING:
    from grasp_client._sync.client import Grasp

Kind = TypeVar("Kind", bound="Record")


class Record(BaseModel):
    """One thing as the server described it; fields that it adds one day are kept too."""

    model_config = ConfigDict(extra="allow")

    _client: Grasp = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        self._client = context


class Collection:
    """All things of one kind."""

    def __init__(self, client: Grasp) -> None:
        self._client = client

    def _read(self, kind: type[Kind], data: object) -> Kind:
        return protocol.validate(kind, data, self._client)

    def _get(self, kind: type[Kind], path: str) -> Kind:
        return self._read(kind, self._client.ask("GET", path))

    def _list(
        self, kind: type[Kind], path: str, limit: int | None, /, **filters: Any
    ) -> list[Kind]:
        """Page after page, newest first: all, or `limit` of them."""
        found: list[Kind] = []
        wanted = protocol.given(**filters)
        while limit is None or len(found) < limit:
            left = protocol.LARGEST_PAGE if limit is None else limit - len(found)
            wanted["limit"] = min(protocol.LARGEST_PAGE, left)
            page = self._client.ask("GET", path, params=wanted)
            found += [self._read(kind, item) for item in page["items"]]
            if page["next_cursor"] is None:
                break
            wanted["cursor"] = page["next_cursor"]
        return found
