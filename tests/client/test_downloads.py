"""Downloads that are not sent as one would like."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from grasp_client import Damaged
from tests.app.world import sha256
from tests.client.played import Play, Played, cut
from tests.client.played import play as play

WEIGHTS, OTHERS = b"0123456789", b"abcdefghij"
MODEL = {
    **{
        "id": "mdl_1",
        "name": "merged",
        "status": "ready",
        "version": 1,
        "architecture": "test_vit",
    },
    **{"classes": None, "image_size": None, "preprocessing": {}, "seed": 0, "merge": {}},
    **{"target": "tgt_1", "keep_versions": None, "keep_sources": False, "queue": None},
    **{"error": None, "job": "job_1", "created_at": "2026-01-01T00:00:00Z"},
}


def answer(content: bytes, start: int = 0, *, until: int | None = None) -> httpx.Response:
    """What is left of a file, as far as it arrives before a cut."""
    rest = content[start:]
    headers = {"ETag": f'"{sha256(content)}"', "Content-Length": str(len(rest))}
    if start:
        headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
    stream = httpx.ByteStream(rest) if until is None else cut(rest[:until])
    return httpx.Response(206 if start else 200, headers=headers, stream=stream)


def pull(play: Play, played: Played) -> bytes:
    played.answers.insert(0, httpx.Response(200, json=MODEL))
    path: Path = play(played).models.pull("merged", "out")
    return path.read_bytes()


def ranges(played: Played) -> list[str | None]:
    return [request.headers.get("Range") for request in played.requests[1:]]


def test_the_rest_is_asked_for(play: Play) -> None:
    played = Played(answer(WEIGHTS, until=4), answer(WEIGHTS, 4))

    assert pull(play, played) == WEIGHTS
    assert ranges(played) == [None, "bytes=4-"]


def test_a_server_that_knows_no_ranges_sends_all_again(play: Play) -> None:
    assert pull(play, Played(answer(WEIGHTS, until=4), answer(WEIGHTS))) == WEIGHTS


def test_a_file_that_was_replaced_meanwhile_is_begun_anew(play: Play) -> None:
    played = Played(answer(WEIGHTS, until=4), answer(OTHERS, 4), answer(OTHERS))

    assert pull(play, played) == OTHERS
    assert ranges(played) == [None, "bytes=4-", None]


def test_another_range_than_was_asked_for_is_not_taken(play: Play) -> None:
    assert (
        pull(play, Played(answer(WEIGHTS, until=4), answer(WEIGHTS, 6), answer(WEIGHTS))) == WEIGHTS
    )


def test_another_server_may_send_what_ours_vouches_for(play: Play) -> None:
    """A bucket knows the bytes by an ETag of its own."""
    sent = answer(WEIGHTS)
    sent_on = {"ETag": sent.headers["ETag"], "Location": "http://127.0.0.1:2/bucket"}
    sent.headers["ETag"] = '"d41d8cd98f00b204e9800998ecf8427e-2"'

    assert pull(play, Played(httpx.Response(307, headers=sent_on), sent)) == WEIGHTS


def test_bytes_that_nobody_vouches_for_are_not_kept(play: Play) -> None:
    sent = answer(WEIGHTS)
    del sent.headers["ETag"]

    with pytest.raises(Damaged, match="no ETag"):
        pull(play, Played(sent))

    assert list(Path.cwd().iterdir()) == []
