"""What the server says about things, and where it says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, PrivateAttr

from grasp_client import protocol

if TYPE_CHECKING:
    from grasp_client._async.client import AsyncGrasp

Kind = TypeVar("Kind", bound="AsyncRecord")


class AsyncRecord(BaseModel):
    """One thing as the server described it; fields that it adds one day are kept too."""

    model_config = ConfigDict(extra="allow")

    _client: AsyncGrasp = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        self._client = context


class AsyncCollection:
    """All things of one kind."""

    def __init__(self, client: AsyncGrasp) -> None:
        self._client = client

    def _read(self, kind: type[Kind], data: object) -> Kind:
        return protocol.validate(kind, data, self._client)

    async def _get(self, kind: type[Kind], path: str) -> Kind:
        return self._read(kind, await self._client.ask("GET", path))

    async def _list(
        self, kind: type[Kind], path: str, limit: int | None, /, **filters: Any
    ) -> list[Kind]:
        """Page after page, newest first: all, or `limit` of them."""
        found: list[Kind] = []
        wanted = protocol.given(**filters)
        while limit is None or len(found) < limit:
            left = protocol.LARGEST_PAGE if limit is None else limit - len(found)
            wanted["limit"] = min(protocol.LARGEST_PAGE, left)
            page = await self._client.ask("GET", path, params=wanted)
            found += [self._read(kind, item) for item in page["items"]]
            if page["next_cursor"] is None:
                break
            wanted["cursor"] = page["next_cursor"]
        return found
