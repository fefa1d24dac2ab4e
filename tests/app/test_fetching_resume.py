"""Going on after a break: a real HTTPS server that cuts its answers wherever it is told to."""

import asyncio
import random
import re
import socket
import ssl
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event

import pytest

from app.fetching import base as fetching_base
from app.fetching.fetch import FetchError, FetchPolicy, open_uri
from tests.app import test_fetching as plain
from tests.app.test_fetching import NAME, Answers, Site, fetch, refusal, serving

CONTENT = random.Random(0).randbytes(300_001)
ETAG = '"v1"'
WHEN = 1_700_000_000
RESET = struct.pack("ii", 1, 0)

certificate = plain.certificate
names = plain.names


@dataclass
class Plan:
    """What the server does with its next answers; when a list is empty, nothing special."""

    cuts: list[int] = field(default_factory=list)  # bytes of the body before each break
    validators: dict[str, str] = field(default_factory=lambda: {"ETag": ETAG})
    rests: dict[str, str] = field(default_factory=dict)  # other headers of a 206
    status: int = 206
    redirects: list[str] = field(default_factory=list)
    chunked: bool = False
    extra: bytes = b""
    reset: bool = False  # the break comes after `over`, as an error and not as an end
    stall: bool = False  # nothing comes until `over`
    over: Event = field(default_factory=Event)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site
    plan: Plan

    def do_GET(self) -> None:
        plan = self.plan
        seen = {key.lower(): value for key, value in self.headers.items()}
        self.site.requests.append(plain.Seen(self.path, seen))
        self.close_connection = True
        if plan.redirects:
            self.head(302, {"Location": plan.redirects.pop(0), "Content-Length": "0"})
            return
        start = self.begin(seen)
        body = self.site.content[start:] + (plan.extra if start else b"")
        cut = plan.cuts.pop(0) if plan.cuts else None
        self.body(body[:cut], ended=cut is None)
        if cut is not None and (plan.stall or plan.reset):
            plan.over.wait()
        if cut is not None and plan.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.connection.close()

    def begin(self, seen: dict[str, str]) -> int:
        """The head of the answer; where its body begins."""
        whole = len(self.site.content)
        asked = re.fullmatch(r"bytes=(\d+)-", seen.get("range", ""))
        same = seen.get("if-range") in self.plan.validators.values()
        start = int(asked[1]) if asked and same else 0
        size = {} if self.plan.chunked else {"Content-Length": str(whole - start)}
        kind = {"Transfer-Encoding": "chunked"} if self.plan.chunked else {}
        headers = {**size, **kind, **self.plan.validators}
        if asked and same:
            content_range = {"Content-Range": f"bytes {start}-{whole - 1}/{whole}"}
            self.head(self.plan.status, {**headers, **content_range, **self.plan.rests})
        else:
            self.head(200, headers)
        return start

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def body(self, data: bytes, *, ended: bool) -> None:
        if self.plan.chunked and data:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self.wfile.write(data + (b"0\r\n\r\n" if self.plan.chunked and ended else b""))

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def plan() -> Iterator[Plan]:
    plan = Plan()
    yield plan
    plan.over.set()


@pytest.fixture
def site(certificate: tuple[Path, Path], plan: Plan) -> Iterator[Site]:
    def make(site: Site) -> type[BaseHTTPRequestHandler]:
        return type("Planned", (Handler,), {"site": site, "plan": plan})

    with serving(certificate, CONTENT, make_handler=make) as site:
        yield site
        plan.over.set()


@pytest.fixture
def policy(site: Site, certificate: tuple[Path, Path]) -> FetchPolicy:
    context = ssl.create_default_context(cafile=certificate[0])
    hosts = (f"{NAME}:{site.port}", "127.0.0.1")
    return FetchPolicy(data_roots=(), allowed_hosts=hosts, timeout=10, ssl_context=context)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(fetching_base.PAUSES_S) == 5
    monkeypatch.setattr(fetching_base, "PAUSES_S", (0.0,) * 5)


def url(site: Site, path: str = "/file.bin") -> str:
    return f"https://{NAME}:{site.port}{path}"


def prefix_and_error(uri: str, policy: FetchPolicy) -> tuple[bytes, FetchError]:
    """The bytes that came out before the error."""
    content = bytearray()

    async def run() -> None:
        async with open_uri(uri, policy) as fetched:
            async for chunk in fetched.chunks:
                content.extend(chunk)

    with pytest.raises(FetchError) as caught:
        asyncio.run(run())
    return bytes(content), caught.value


def starts(site: Site) -> list[int | None]:
    """Where each request asked the answer to begin."""
    ranges = [request.headers.get("range") for request in site.requests]
    return [int(asked[len("bytes=") : -1]) if asked else None for asked in ranges]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_bytes_are_those_of_an_undisturbed_fetch(
    site: Site, policy: FetchPolicy, plan: Plan, seed: int, chunked: bool
) -> None:
    dice = random.Random(seed)
    plan.chunked = chunked
    plan.cuts = [dice.choice([0, 1, dice.randrange(60_000)]) for _ in range(dice.randint(1, 5))]
    positions = [sum(plan.cuts[: n + 1]) for n in range(len(plan.cuts))]

    size, filename, content = fetch(url(site), policy)

    assert content == CONTENT
    assert (size, filename) == (None if chunked else len(CONTENT), "file.bin")
    assert starts(site) == [None, *positions]
    assert {request.headers.get("if-range") for request in site.requests[1:]} == {ETAG}
    assert {request.headers["accept-encoding"] for request in site.requests} == {"identity"}


@pytest.mark.parametrize("seed", range(3))
def test_a_connection_that_is_reset(site: Site, policy: FetchPolicy, plan: Plan, seed: int) -> None:
    """The system throws away what has arrived and was not read, even heads of answers."""

    async def run() -> bytes:
        async with open_uri(url(site), policy) as fetched:
            content = await anext(fetched.chunks)
            plan.over.set()
            return content + b"".join([chunk async for chunk in fetched.chunks])

    plan.reset = True
    plan.cuts = [random.Random(seed).randrange(1, 100_000) for _ in range(3)]

    assert asyncio.run(run()) == CONTENT
    assert len(site.requests) == 4


def test_a_connection_that_is_silent(site: Site, policy: FetchPolicy, plan: Plan) -> None:
    plan.stall = True
    plan.cuts = [50_000]

    assert fetch(url(site), replace(policy, timeout=0.5))[2] == CONTENT
    assert starts(site) == [None, 50_000]


def test_five_breaks_and_no_more(site: Site, policy: FetchPolicy, plan: Plan) -> None:
    plan.cuts = [1000] * 6

    content, error = prefix_and_error(url(site, "/file.bin?key=hidden"), policy)

    assert error.code == "uri_unreachable"
    assert error.hint
    assert "after 6000 bytes" in error.message
    assert "hidden" not in str(error)
    assert content == CONTENT[:6000]
    assert starts(site) == [None, 1000, 2000, 3000, 4000, 5000]


def test_an_old_date_is_as_good_as_a_strong_etag(
    site: Site, policy: FetchPolicy, plan: Plan
) -> None:
    modified = formatdate(WHEN, usegmt=True)
    plan.validators = {"ETag": 'W/"v1"', "Last-Modified": modified}
    plan.cuts = [7]

    assert fetch(url(site), policy)[2] == CONTENT
    assert site.requests[1].headers["if-range"] == modified


@pytest.mark.parametrize(
    "validators",
    [
        {},
        {"ETag": 'W/"v1"'},
        {"ETag": "v1"},
        {"ETag": ""},
        {"Last-Modified": "yesterday"},
        {"Last-Modified": f"Mon, 01 Jan 2024 00:00:00 +{10**18}"},
        {"Last-Modified": formatdate(4_000_000_000, usegmt=True)},
    ],
)
def test_what_could_have_changed_is_not_resumed(
    site: Site, policy: FetchPolicy, plan: Plan, validators: dict[str, str]
) -> None:
    plan.validators = validators
    plan.cuts = [1000]

    content, error = prefix_and_error(url(site), policy)

    assert (error.code, content) == ("uri_unreachable", CONTENT[:1000])
    assert "ETag" in str(error)
    assert len(site.requests) == 1


def test_a_file_modified_just_before_it_was_sent(
    site: Site, policy: FetchPolicy, plan: Plan
) -> None:
    plan.validators = {"Last-Modified": formatdate(usegmt=True)}
    plan.cuts = [1000]

    assert refusal(url(site), policy).code == "uri_unreachable"
    assert len(site.requests) == 1


def test_a_file_that_has_changed(site: Site, policy: FetchPolicy, plan: Plan) -> None:
    async def run() -> None:
        async with open_uri(url(site), policy) as fetched:
            await anext(fetched.chunks)
            plan.validators = {"ETag": '"v2"'}
            async for _ in fetched.chunks:
                pass

    plan.cuts = [1000]
    with pytest.raises(FetchError) as caught:
        asyncio.run(run())

    assert caught.value.code == "uri_unreachable"
    assert "status 200" in caught.value.message
    assert len(site.requests) == 2


WHOLE = len(CONTENT)
WRONG = {
    "an earlier start": {"Content-Range": f"bytes 999-{WHOLE - 1}/{WHOLE}"},
    "a later start": {"Content-Range": f"bytes 1001-{WHOLE - 1}/{WHOLE}"},
    "an earlier end": {"Content-Range": f"bytes 1000-{WHOLE - 2}/{WHOLE}"},
    "another size": {"Content-Range": f"bytes 1000-{WHOLE}/{WHOLE + 1}"},
    "an unknown size": {"Content-Range": f"bytes 1000-{WHOLE - 1}/*"},
    "other units": {"Content-Range": f"lines 1000-{WHOLE - 1}/{WHOLE}"},
    "no range": {"Content-Range": ""},
    "another etag": {"ETag": '"v2"'},
    "compressed": {"Content-Encoding": "gzip"},
}


@pytest.mark.parametrize("headers", WRONG.values(), ids=WRONG)
def test_a_rest_that_is_not_what_was_asked_for(
    site: Site, policy: FetchPolicy, plan: Plan, headers: dict[str, str]
) -> None:
    plan.cuts = [1000]
    plan.rests = headers

    content, error = prefix_and_error(url(site), policy)

    assert (error.code, content) == ("uri_unreachable", CONTENT[:1000])
    assert "the rest" in error.message
    assert len(site.requests) == 2


@pytest.mark.parametrize("status", [200, 404, 416, 503])
def test_a_rest_with_another_status(
    site: Site, policy: FetchPolicy, plan: Plan, status: int
) -> None:
    plan.cuts = [1000]
    plan.status = status

    content, error = prefix_and_error(url(site), policy)

    assert (error.code, content) == ("uri_unreachable", CONTENT[:1000])
    assert f"status {status}" in error.message


def test_a_rest_that_is_too_long(site: Site, policy: FetchPolicy, plan: Plan) -> None:
    plan.chunked = True
    plan.cuts = [1000]
    plan.extra = b"!"

    content, error = prefix_and_error(url(site), policy)

    assert error.code == "uri_unreachable"
    assert "more bytes" in error.message
    assert CONTENT.startswith(content)


def test_redirects_are_followed_again(site: Site, policy: FetchPolicy, plan: Plan) -> None:
    async def run() -> bytes:
        async with open_uri(url(site, "/first.bin"), policy) as fetched:
            content = await anext(fetched.chunks)
            plan.redirects = ["/third.bin"]
            return content + b"".join([chunk async for chunk in fetched.chunks])

    plan.redirects = ["/second.bin"]
    plan.cuts = [1000]

    assert asyncio.run(run()) == CONTENT
    paths = [request.path for request in site.requests]
    assert paths == ["/first.bin", "/second.bin", "/first.bin", "/third.bin"]
    assert starts(site) == [None, None, 1000, 1000]


def test_redirects_are_checked_again(site: Site, policy: FetchPolicy, plan: Plan) -> None:
    async def run() -> None:
        async with open_uri(url(site), policy) as fetched:
            await anext(fetched.chunks)
            plan.redirects = ["https://other.test/file.bin"]
            async for _ in fetched.chunks:
                pass

    plan.cuts = [1000]
    with pytest.raises(FetchError) as caught:
        asyncio.run(run())

    assert caught.value.code == "uri_not_allowed"
    assert len(site.requests) == 2


def test_addresses_are_checked_again(
    site: Site, policy: FetchPolicy, plan: Plan, names: Answers
) -> None:
    names[NAME] = [["127.0.0.1"], ["127.0.0.2"]]
    plan.cuts = [1000]

    content, error = prefix_and_error(url(site), policy)

    assert (error.code, content) == ("uri_not_allowed", CONTENT[:1000])
    assert "127.0.0.2" in error.message
    assert len(site.requests) == 1


def test_a_server_that_is_away_for_a_moment(
    site: Site, policy: FetchPolicy, plan: Plan, names: Answers
) -> None:
    names[NAME] = [["127.0.0.1"], ["127.0.0.3"], ["127.0.0.3"], ["127.0.0.1"]]
    listed = replace(policy, allowed_hosts=(*policy.allowed_hosts, "127.0.0.3"))
    plan.cuts = [1000]

    assert fetch(url(site), listed)[2] == CONTENT
    assert names[NAME] == [["127.0.0.1"]]  # two attempts met nobody
    assert starts(site) == [None, 1000]


def test_the_whole_may_not_take_too_long(site: Site, policy: FetchPolicy, plan: Plan) -> None:
    plan.stall = True
    plan.cuts = [1000]

    content, error = prefix_and_error(url(site), replace(policy, total_timeout=0.5))

    assert (error.code, content) == ("uri_unreachable", CONTENT[:1000])
    assert "longer than 0.5 seconds" in error.message


def test_pauses_count_as_well(
    site: Site, policy: FetchPolicy, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching_base, "PAUSES_S", (600.0,) * 5)
    plan.cuts = [1000]

    _, error = prefix_and_error(url(site), replace(policy, total_timeout=0.5))

    assert "longer than 0.5 seconds" in error.message
    assert len(site.requests) == 1
