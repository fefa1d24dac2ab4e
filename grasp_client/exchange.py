"""Asking the server: what is tried again, and how an answer that is no success becomes an error."""

from __future__ import annotations

import json
import math
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx

from grasp_client.errors import (
    Conflict,
    GraspError,
    Misunderstood,
    NotFound,
    Refused,
    Unreachable,
    refusal,
)
from grasp_client.plans import Call, Open, Plan, Read, Sleep

if TYPE_CHECKING:
    from grasp_client.client import AsyncGrasp, Grasp

WRONG_SERVER = "is it a GRASP server that answers at this address?"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.4, 5.0
PASSING = frozenset({429, 502, 503, 504})  # the last three also from a proxy, during a restart


@dataclass(frozen=True)
class Answer:
    """A success, and all of its body."""

    headers: httpx.Headers
    content: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.content)
        except ValueError as error:
            raise Misunderstood("the answer is not JSON", hint=WRONG_SERVER) from error


class Tries:
    """Trying again what may pass: with longer and longer pauses, as long as patience lasts."""

    def __init__(self, client: Grasp | AsyncGrasp) -> None:
        self.failed = 0
        self._client = client
        self._until = 0.0

    def pause(
        self, error: GraspError, *, passing: bool = False, until: float = math.inf
    ) -> Plan[None]:
        """Wait for the next try. Raises the error if it will not pass, or has not for too long.

        `passing`: this one is known to pass, whatever it is. `until`: when the pause ends
        at the latest.
        """
        now = time.monotonic()
        if not self.failed:
            self._until = now + self._client.patience
        self.failed += 1
        seconds = self._seconds(error, passing)
        if seconds is None or min(now + seconds, until) > self._until:
            raise error
        yield Sleep(max(0.0, min(seconds, until - now)))

    def progress(self) -> None:
        """Things go on: patience begins anew."""
        self.failed = 0

    def _seconds(self, error: GraspError, passing: bool) -> float | None:
        jitter = random.uniform(0.5, 1.0)  # noqa: S311 - so that clients do not come back at once
        pause = jitter * min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self.failed - 1, 9))
        if isinstance(error, Unreachable):
            hopeless = error.refused and not (self._client.reached or self._client.wait_for_server)
            return None if hopeless else pause
        if isinstance(error, Refused) and error.status in PASSING:
            return pause if error.retry_after is None else error.retry_after + jitter
        return pause if passing else None


def ask(client: Grasp | AsyncGrasp, call: Call) -> Plan[Answer]:
    """The whole answer. Raises Unreachable or Refused, if trying again does not help.

    Every POST gets an Idempotency-Key: however often it arrives, it happens once.
    """
    call = with_key(call)
    tries = Tries(client)
    while True:
        try:
            response = yield from open_response(client, call)
            return Answer(response.headers, (yield from read_rest(client)))
        except NotFound:
            if call.method == "DELETE" and tries.failed:  # the try before had reached the server
                return Answer(httpx.Headers(), b"")
            raise
        except Conflict as error:
            if call.method != "POST" or tries.failed != 1:
                raise
            # The first try may still be at work: its answer is there once it is done.
            yield from tries.pause(error, passing=True)
        except GraspError as error:
            yield from tries.pause(error)


def with_key(call: Call) -> Call:
    if call.method != "POST":
        return call
    headers = {"Idempotency-Key": uuid4().hex, **call.headers}
    return Call(**{**vars(call), "headers": headers})


def open_response(client: Grasp | AsyncGrasp, call: Call) -> Plan[httpx.Response]:
    """One try: a success whose body has not been read. Raises Unreachable, Refused."""
    try:
        response: httpx.Response = yield Open(call)
    except httpx.TransportError as error:
        raise unreachable(client, error) from error
    client.reached = True
    if response.is_success:
        return response
    raise _refusal(response, (yield from read_rest(client)))


def read_rest(client: Grasp | AsyncGrasp) -> Plan[bytes]:
    """All that is left of the open response."""
    content = bytearray()
    while piece := (yield from read_piece(client)):
        content += piece
    return bytes(content)


def read_piece(client: Grasp | AsyncGrasp) -> Plan[bytes]:
    """The next bytes of the open response; none at its end. Raises Unreachable."""
    try:
        piece: bytes = yield Read()
    except httpx.TransportError as error:
        raise unreachable(client, error) from error
    return piece


def unreachable(client: Grasp | AsyncGrasp, error: httpx.TransportError) -> Unreachable:
    refused = isinstance(error, httpx.ConnectError)
    what = "cannot reach" if refused else "lost the connection to"
    hint = "is the server running? `grasp serve` starts one; GRASP_URL names another"
    return Unreachable(
        f"{what} {client.url}: {str(error) or type(error).__name__}",
        hint=hint if refused else None,
        refused=refused,
    )


def _refusal(response: httpx.Response, content: bytes) -> Refused:
    status = response.status_code
    try:
        problem = json.loads(content)
        if not {"code", "detail"} <= problem.keys():
            raise ValueError("not problem+json")
    except (ValueError, AttributeError):  # from something between us and the server
        problem = {"code": f"http_{status}", "detail": f"{status} {response.reason_phrase}"}
    return refusal(status, problem, _retry_after(response.headers.get("retry-after")))


def _retry_after(value: str | None) -> float | None:
    """Seconds, or a date (RFC 9110, 10.2.3)."""
    if value is None:
        return None
    try:
        if value.strip().isdecimal():
            return float(value)
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None
