"""Downloads that are not sent as one would like."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from grasp_client import Damaged, Grasp
from grasp_client.downloads import download
from tests.app.world import sha256
from tests.client.played import Cut, Played

WEIGHTS, OTHERS = b"0123456789", b"abcdefghij"


@pytest.fixture
def grasp(no_settings: None) -> Iterator[Grasp]:
    with Grasp("http://127.0.0.1:1") as client:
        yield client


def answer(content: bytes, start: int = 0, *, cut: int | None = None) -> httpx.Response:
    """What is left of a file, as far as it arrives before a cut."""
    rest = content[start:]
    headers = {"ETag": f'"{sha256(content)}"', "Content-Length": str(len(rest))}
    if start:
        headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
    stream = httpx.ByteStream(rest) if cut is None else Cut(rest[:cut])
    return httpx.Response(206 if start else 200, headers=headers, stream=stream)


def pull(grasp: Grasp, played: Played) -> bytes:
    return played.run(download(grasp, "/models/x", Path("out"), None)).read_bytes()


def ranges(played: Played) -> list[str | None]:
    return [call.headers.get("Range") for call in played.calls]


def test_the_rest_is_asked_for(grasp: Grasp) -> None:
    played = Played(answer(WEIGHTS, cut=4), answer(WEIGHTS, 4))

    assert pull(grasp, played) == WEIGHTS
    assert ranges(played) == [None, "bytes=4-"]


def test_a_server_that_knows_no_ranges_sends_all_again(grasp: Grasp) -> None:
    assert pull(grasp, Played(answer(WEIGHTS, cut=4), answer(WEIGHTS))) == WEIGHTS


def test_a_file_that_was_replaced_meanwhile_is_begun_anew(grasp: Grasp) -> None:
    played = Played(answer(WEIGHTS, cut=4), answer(OTHERS, 4), answer(OTHERS))

    assert pull(grasp, played) == OTHERS
    assert ranges(played) == [None, "bytes=4-", None]


def test_another_range_than_was_asked_for_is_not_taken(grasp: Grasp) -> None:
    assert (
        pull(grasp, Played(answer(WEIGHTS, cut=4), answer(WEIGHTS, 6), answer(WEIGHTS))) == WEIGHTS
    )


def test_another_server_may_send_what_ours_vouches_for(grasp: Grasp) -> None:
    """A bucket knows the bytes by an ETag of its own."""
    sent = answer(WEIGHTS)
    sent.history = [httpx.Response(307, headers={"ETag": sent.headers["ETag"]})]
    sent.headers["ETag"] = '"d41d8cd98f00b204e9800998ecf8427e-2"'

    assert pull(grasp, Played(sent)) == WEIGHTS


def test_bytes_that_nobody_vouches_for_are_not_kept(grasp: Grasp) -> None:
    sent = answer(WEIGHTS)
    del sent.headers["ETag"]
    sent.request = httpx.Request("GET", "http://127.0.0.1:1/models/x")

    with pytest.raises(Damaged, match="no ETag"):
        pull(grasp, Played(sent))

    assert list(Path.cwd().iterdir()) == []
