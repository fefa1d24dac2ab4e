"""What both clients know of the server and its HTTP: nothing here waits."""

from __future__ import annotations

import json
import math
import os
import random
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from grasp_client.address import check_url, default_url, home
from grasp_client.errors import Damaged, GraspError, Misunderstood, Refused, Unreachable, refusal

PATIENCE_S = 60.0  # a server that is restarted, or moved to another machine, is back by then
TIMEOUT_S, CONNECT_S = 60.0, 10.0
THIS_MACHINE = ("127.0.0.1", "::1", "localhost")
# A proxy that the environment names is not asked for what runs on this machine.
NO_PROXY = {f"all://{f'[{host}]' if ':' in host else host}": None for host in THIS_MACHINE}
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.4, 5.0
SHA256_TAG = re.compile(r'"([0-9a-f]{64})"')
PASSING = frozenset({429, 502, 503, 504})  # the last three also from a proxy, during a restart
LARGEST_PAGE = 200
HEARTBEAT_S = 15.0  # the server sends an event, or a comment, at least as often
SILENCE_S = 3 * HEARTBEAT_S  # then the connection is dead
LATE_S = 0.5  # how much later than asked is in time
ENDED = ("succeeded", "rejected", "failed", "cancelled")  # a job, for good
WRONG_SERVER = "is it a GRASP server that answers at this address?"
Model = TypeVar("Model", bound=BaseModel)


class Connection:
    """Where the server is, who asks, and how patiently."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        patience: float = PATIENCE_S,
        wait_for_server: bool = True,
    ) -> None:
        """Without `url` and `key`, GRASP_URL and GRASP_KEY are used; and on this machine the
        address of the service that runs in GRASP_HOME (or ./.grasp), and if it has no keys, its
        token.

        What fails for reasons that pass is tried again for `patience` seconds. Without
        `wait_for_server`, a server that has not answered yet is given up at once.
        """
        self.url = check_url(url) if url else default_url()
        self.patience = patience
        self.wait_for_server = wait_for_server
        self.reached = False  # whether it has ever answered
        self._connect(
            base_url=self.url,
            headers=_authorization(key or os.environ.get("GRASP_KEY") or _token(self.url)),
            timeout=timeouts(),
            follow_redirects=True,  # to a bucket that sends the weights itself
            mounts=NO_PROXY,
        )

    def _connect(self, **options: Any) -> None:
        raise NotImplementedError


def timeouts(longest: float = math.inf) -> httpx.Timeout:
    return httpx.Timeout(min(TIMEOUT_S, longest), connect=min(CONNECT_S, longest))


def path(*parts: object) -> str:
    """A path, in which each part stays one whatever characters it has."""
    return "/" + "/".join(quote(str(part), safe="") for part in parts)


def given(**fields: Any) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def _authorization(key: str) -> dict[str, str]:
    secret = key.strip()
    if not (secret.isascii() and secret.isprintable()):
        raise GraspError("the key has characters that no key has", hint="copy it once more")
    return {"Authorization": f"Bearer {secret}"} if secret else {}


def _token(url: str) -> str:
    """What `grasp serve` has written for its user; it is nobody's business on other machines."""
    if urlsplit(url).hostname not in THIS_MACHINE:
        return ""
    try:
        return (home() / "token").read_text()
    except (OSError, ValueError):
        return ""


# --- Answers --------------------------------------------------------------------------------------


def parse(content: bytes) -> Any:
    """Raises Misunderstood."""
    try:
        return json.loads(content)
    except ValueError as error:
        raise Misunderstood("the answer is not JSON", hint=WRONG_SERVER) from error


def validate(kind: type[Model], data: object, client: Connection) -> Model:
    """A record, and those inside it, which do things through this client. Raises Misunderstood."""
    try:
        return kind.model_validate(data, context=client)
    except ValidationError as error:
        name = kind.__name__.removeprefix("Async")
        raise Misunderstood(f"the answer is no {name}", hint=WRONG_SERVER) from error


class JobProblem(BaseModel):
    """Why a job, a target or a model did not come to a good end."""

    code: str
    message: str
    hint: str | None = None


class Blob(BaseModel):
    """Bytes that the server keeps beside weights."""

    sha256: str
    size: int


class StoredFile(Blob):
    """What belongs to a model, or to a version beside its weights."""

    name: str
    links: dict[str, str]


class Change(BaseModel):
    """Two models on the same examples."""

    count: int
    lost: int  # right under the first, wrong under the second
    gained: int
    trend: str = "same"  # up or down, where it is more than chance explains


class Verdict(BaseModel):
    """What the gate says of a fold, or of one that only tries."""

    outcome: str  # accepted, rejected, or kept: the weights stay as they were
    reason: str | None = None
    cause: str | None = None  # not_finite, norm, floor or fall; None: not refused, or an old server
    change: Change | None = None  # on validation

    @property
    def accepted(self) -> bool:
        return self.outcome != "rejected"


class Sensitivity(BaseModel):
    """What a gate can see of a target: the smallest falls of validation accuracy it refuses."""

    count: int  # validation examples
    overall: float | None  # None: it sees none
    one_class: float | None  # of the class of which least can be seen
    classes: int


class ProbedRate(BaseModel):
    """A learning rate that was tried, and how good the model was at its best."""

    rate: float
    step: int
    val_accuracy: float
    val_log_likelihood: float | None


class LearningRate(BaseModel):
    """What `refine.lr: "auto"` means for a model: the best of those that a fold has tried."""

    rate: float
    version: int  # that this fold made
    probe: list[ProbedRate]


def sha256_tag(response: httpx.Response) -> str:
    """From the ETag of our server's own answer: it may have sent us on to another one."""
    answer = [*response.history, response][0]
    found = SHA256_TAG.search(answer.headers.get("etag", ""))
    if found is None:
        raise Damaged(f"the answer of {answer.url} has no ETag with its sha256")
    return found[1]


def unreachable(url: str, error: httpx.TransportError) -> Unreachable:
    refused = isinstance(error, httpx.ConnectError)
    what = "cannot reach" if refused else "lost the connection to"
    hint = "is the server running? `grasp serve` starts one; GRASP_URL names another"
    return Unreachable(
        f"{what} {url}: {str(error) or type(error).__name__}",
        hint=hint if refused else None,
        refused=refused,
    )


def refused(response: httpx.Response) -> Refused:
    """The error for an answer that is no success, all of which was read."""
    status = response.status_code
    try:
        problem = json.loads(response.content)
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


# --- Trying again ---------------------------------------------------------------------------------


class Retries:
    """Trying again what may pass: with longer and longer pauses, as long as patience lasts."""

    def __init__(self, client: Connection) -> None:
        self.failed = 0
        self._client = client
        self._until = 0.0

    def pause(self, error: GraspError, *, passing: bool = False, until: float = math.inf) -> float:
        """Seconds until the next try. Raises the error if it will not pass, or has not for too
        long.

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
        return max(0.0, min(seconds, until - now))

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


# --- Server-sent events ---------------------------------------------------------------------------


class Event(NamedTuple):
    id: str | None
    data: str


class EventReader:
    """Bytes to events, as far as the server uses the format."""

    def __init__(self) -> None:
        self._unread = b""

    def feed(self, piece: bytes) -> Iterator[Event]:
        *blocks, self._unread = (self._unread + piece).split(b"\n\n")
        for block in blocks:
            pairs = [line.partition(": ") for line in block.decode().split("\n")]
            fields = {name: value for name, _, value in pairs}
            if "data" in fields:  # and not a comment, which keeps the connection alive
                yield Event(fields.get("id"), fields["data"])
