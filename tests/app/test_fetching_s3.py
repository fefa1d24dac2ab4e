"""Fetching from S3: a real HTTP server that speaks it, and a proxy that cuts connections."""

import asyncio
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import httpx
import pytest

from app.fetching import base as fetching_base
from app.fetching import s3 as fetching_s3
from app.fetching.fetch import FetchError, FetchPolicy, open_uri
from tests.app.test_fetching import fetch, refusal
from tests.app.world import World, checkpoint, sha256
from tests.buckets import Bucket, serving_s3

CONTENT = random.Random(1).randbytes(300_001)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with serving_s3() as url:
        yield url


@pytest.fixture
def bucket(endpoint: str) -> Bucket:
    bucket = Bucket.make(endpoint)
    bucket.put("folder/file.bin", CONTENT)
    return bucket


@pytest.fixture
def policy(bucket: Bucket) -> FetchPolicy:
    return FetchPolicy(
        data_roots=(),
        allowed_hosts=(),
        allowed_buckets=("another", bucket.name),
        s3_endpoint=bucket.endpoint,
    )


@pytest.fixture(autouse=True)
def small_parts_and_no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching_s3, "PART_BYTES", 50_000)
    monkeypatch.setattr(fetching_base, "PAUSES_S", (0.0,) * 5)


def test_an_object_of_a_listed_bucket(bucket: Bucket, policy: FetchPolicy) -> None:
    expected = (len(CONTENT), "file.bin", CONTENT)

    assert fetch(f"s3://{bucket.name}/folder/file.bin", policy) == expected
    assert fetch(f"S3://{bucket.name}/folder/file.bin", policy) == expected


@pytest.mark.parametrize("size", [0, 1, 49_999, 50_000, 50_001, 100_000])
def test_any_size(bucket: Bucket, policy: FetchPolicy, size: int) -> None:
    bucket.put("sized", CONTENT[:size])

    assert fetch(f"s3://{bucket.name}/sized", policy) == (size, "sized", CONTENT[:size])


def test_pieces_are_bounded(bucket: Bucket, policy: FetchPolicy) -> None:
    async def sizes() -> list[int]:
        async with open_uri(f"s3://{bucket.name}/folder/file.bin", policy) as fetched:
            return [len(chunk) async for chunk in fetched.chunks]

    assert asyncio.run(sizes()) == [50_000] * 6 + [1]


@pytest.mark.parametrize(
    "key", ["a b.bin", "a%20b.bin", "%2e%2e/x", "q?x=1", "a#b", "ü.bin", "..."]
)
def test_a_key_is_taken_as_it_is(bucket: Bucket, policy: FetchPolicy, key: str) -> None:
    bucket.put(key, key.encode())

    name = key.rpartition("/")[2]
    assert fetch(f"s3://{bucket.name}/{key}", policy) == (len(key.encode()), name, key.encode())


@pytest.mark.parametrize(
    "uri",
    [
        "s3://{other}/secret",
        "s3://user@{bucket}/folder/file.bin",
        "s3://{bucket}:80/folder/file.bin",
        "s3://{bucket}x/folder/file.bin",
        "s3:///{bucket}/folder/file.bin",
        "s3:{bucket}/folder/file.bin",
        "s3:/{bucket}/folder/file.bin",
        "s3://{bucket}",
        "s3://{bucket}/",
        "s3://{bucket}//folder/file.bin",
        "s3://{bucket}/folder/file.bin/",
        "s3://{bucket}/folder//file.bin",
        "s3://{bucket}/../{other}/secret",
        "s3://{bucket}/folder/../file.bin",
        "s3://{bucket}/./folder/file.bin",
        "s3://{bucket}/folder\n/file.bin",
        "s3://",
        "s3:",
    ],
)
def test_what_is_not_listed_or_no_key(bucket: Bucket, policy: FetchPolicy, uri: str) -> None:
    other = Bucket.make(bucket.endpoint)
    other.put("secret", b"secret")

    error = refusal(uri.format(bucket=bucket.name, other=other.name), policy)

    assert error.code == "uri_not_allowed"
    assert "from: " not in error.message  # which others there are is not told


def test_without_buckets_the_setting_is_named(bucket: Bucket, policy: FetchPolicy) -> None:
    error = refusal(f"s3://{bucket.name}/folder/file.bin", replace(policy, allowed_buckets=()))

    assert error.code == "uri_not_allowed"
    assert "GRASP_ALLOWED_BUCKETS" in str(error)


def test_a_missing_key_and_a_missing_bucket(bucket: Bucket, policy: FetchPolicy) -> None:
    for uri in (f"s3://{bucket.name}/missing", "s3://another/missing"):
        error = refusal(uri, policy)

        assert error.code == "uri_unreachable"
        assert error.message == f"there is no {uri}"


def test_without_permission(bucket: Bucket, policy: FetchPolicy) -> None:
    deny = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "*"}
    rules = {"Version": "2012-10-17", "Statement": [deny]}
    httpx.put(f"{bucket.endpoint}/{bucket.name}?policy", json=rules).raise_for_status()

    error = refusal(f"s3://{bucket.name}/folder/file.bin", policy)

    assert error.code == "uri_unreachable"
    assert "does not let this server read" in error.message
    assert "s3:GetObject" in str(error)
    assert bucket.endpoint not in str(error)


def test_a_store_that_never_answers(policy: FetchPolicy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        lost = replace(policy, s3_endpoint=f"http://127.0.0.1:{port}", timeout=0.3)

        error = refusal("s3://another/key", lost)

    assert error.code == "uri_unreachable"
    assert str(port) not in str(error)


def test_the_whole_may_not_take_too_long(policy: FetchPolicy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        lost = f"http://127.0.0.1:{silent.getsockname()[1]}"

        error = refusal("s3://another/key", replace(policy, s3_endpoint=lost, total_timeout=0.3))

    assert "longer than 0.3 seconds" in error.message


def test_an_object_that_changes_on_the_way(bucket: Bucket, policy: FetchPolicy) -> None:
    async def run() -> None:
        async with open_uri(f"s3://{bucket.name}/folder/file.bin", policy) as fetched:
            await anext(fetched.chunks)
            bucket.put("folder/file.bin", CONTENT[::-1])
            async for _ in fetched.chunks:
                pass

    with pytest.raises(FetchError) as caught:
        asyncio.run(run())

    assert caught.value.code == "uri_unreachable"
    assert "has changed" in caught.value.message


# A proxy


@dataclass
class Proxy:
    """Passes bytes on; `limits` are how many of each connection's answers, in turn."""

    upstream: tuple[str, int]
    listener: socket.socket
    limits: list[int] = field(default_factory=list)
    cuts: int = 0
    threads: list[threading.Thread] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def serve(self) -> None:
        with suppress(OSError):  # closed: the end
            while True:
                client, _ = self.listener.accept()
                thread = threading.Thread(target=self.connect, args=(client,))
                self.threads.append(thread)
                thread.start()

    def connect(self, client: socket.socket) -> None:
        with client, socket.create_connection(self.upstream) as server:
            back = threading.Thread(target=self.copy, args=(client, server, None))
            back.start()
            self.copy(server, client, self.limits.pop(0) if self.limits else None)
            back.join()

    def copy(self, source: socket.socket, sink: socket.socket, left: int | None) -> None:
        with suppress(OSError):
            while left != 0 and (data := source.recv(min(left or 65536, 65536))):
                sink.sendall(data)
                left = None if left is None else left - len(data)
        self.cuts += left == 0
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    url = urlsplit(bucket.endpoint)
    assert url.hostname
    assert url.port
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = Proxy((url.hostname, url.port), listener)
        thread = threading.Thread(target=proxy.serve)
        thread.start()
        yield proxy
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for thread in proxy.threads:
        thread.join()


@pytest.mark.parametrize("seed", range(6))
def test_the_bytes_are_those_of_an_undisturbed_fetch(
    bucket: Bucket, policy: FetchPolicy, proxy: Proxy, seed: int
) -> None:
    """Cut more often than the client of S3 would bear by itself."""
    dice = random.Random(seed)
    look, *cuts = 10_000, *(dice.randrange(700, 6000) for _ in range(8))
    proxy.limits = [look, *cuts]

    through = replace(policy, s3_endpoint=proxy.url)

    assert fetch(f"s3://{bucket.name}/folder/file.bin", through)[2] == CONTENT
    assert proxy.cuts == len(cuts)


def test_a_store_that_goes_away(bucket: Bucket, policy: FetchPolicy, proxy: Proxy) -> None:
    """Parts never fit into what the connections let pass."""
    proxy.limits = [2000] * 1000
    content = bytearray()

    async def run() -> None:
        through = replace(policy, s3_endpoint=proxy.url, timeout=0.5)
        async with open_uri(f"s3://{bucket.name}/folder/file.bin", through) as fetched:
            async for chunk in fetched.chunks:
                content.extend(chunk)

    with pytest.raises(FetchError) as caught:
        asyncio.run(run())

    assert caught.value.code == "uri_unreachable"
    assert caught.value.hint
    assert CONTENT.startswith(content)
    assert proxy.url not in str(caught.value)


# Through the API


def test_targets_and_sources_by_s3_uri(bucket: Bucket, make_world: Callable[..., World]) -> None:
    archive, weights = b"PK" + CONTENT, checkpoint()
    bucket.put("faces.zip", archive)
    bucket.put("site-a.safetensors", weights)
    world = make_world(allowed_buckets=(bucket.name,), blob_endpoint=bucket.endpoint)
    uri = f"s3://{bucket.name}"

    target = world.client.post(
        "/targets", json={"name": "faces", "uri": f"{uri}/faces.zip", "sha256": sha256(archive)}
    )
    world.validate()
    world.post_model()
    world.prepare()
    source = world.client.post(
        "/sources", json={"model": "merged", "uri": f"{uri}/site-a.safetensors"}
    )
    missing = world.client.post("/sources", json={"model": "merged", "uri": f"{uri}/missing"})
    elsewhere = world.client.post("/sources", json={"model": "merged", "uri": "s3://other/key"})

    assert (target.status_code, source.status_code) == (202, 202)
    assert world.store.fetch(sha256(archive)).read_bytes() == archive
    assert source.json()["source"]["sha256"] == sha256(weights)
    assert world.store.fetch(sha256(weights)).read_bytes() == weights
    assert (missing.status_code, missing.json()["code"]) == (422, "uri_unreachable")
    assert (elsewhere.status_code, elsewhere.json()["code"]) == (422, "uri_not_allowed")
