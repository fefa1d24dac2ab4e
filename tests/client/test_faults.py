"""What networks do to connections, and what becomes of it: nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from grasp_client import Damaged, Grasp, Unreachable, files
from tests.app.world import Server, World, checkpoint, sha256
from tests.client.proxy import Proxy, cut_after, flip_after

LARGE = 8 * 2**20  # more than the buffers between two processes hold
lose_answer = cut_after(0)
Connect = Callable[..., Any]


@pytest.fixture
def large_source(tmp_path: Path) -> Path:
    """Of a model whose head has as many classes as it takes."""
    classes = LARGE // 20
    path = tmp_path / "large.safetensors"
    path.write_bytes(checkpoint(1, head__weight=(classes, 4), head__bias=(classes,)))
    return path


@pytest.fixture
def unprepared(world: World) -> str:
    """A model that takes any checkpoint: nobody has looked yet what it is made of."""
    world.ready_target("faces")
    world.post_model("merged")
    return "merged"


def test_an_upload_that_is_cut_is_sent_again(
    connect: Connect, proxy: Proxy, world: World, unprepared: str, large_source: Path
) -> None:
    proxy.up.append(cut_after(LARGE // 2))

    source = connect(proxy.url).sources.push(large_source, model=unprepared)

    assert proxy.connections == 2
    assert source.sha256 == sha256(large_source.read_bytes())
    assert len(world.client.get("/sources").json()["items"]) == 1


def send_in_parts(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(files, "LARGE_BYTES", 1)
    monkeypatch.setattr(files, "PART_BYTES", size)


def test_a_large_upload_goes_on_where_it_was_cut(
    connect: Connect,
    proxy: Proxy,
    world: World,
    unprepared: str,
    large_source: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send_in_parts(monkeypatch, LARGE // 2)
    proxy.up += [cut_after(LARGE // 3), cut_after(LARGE // 3)]

    source = connect(proxy.url).sources.push(large_source, model=unprepared)

    assert proxy.connections == 3
    assert proxy.sent < 1.1 * large_source.stat().st_size
    assert source.sha256 == sha256(large_source.read_bytes())
    assert world.client.get("/uploads").json()["items"] == []


def test_three_who_push_the_same_large_file_at_once(
    server: Server,
    world: World,
    unprepared: str,
    large_source: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send_in_parts(monkeypatch, LARGE // 4)

    def push(_: int) -> str | None:
        with Grasp(server.url) as grasp:
            return grasp.sources.push(large_source, model=unprepared).id

    with ThreadPoolExecutor(3) as pool:
        pushed = set(pool.map(push, range(3)))

    [source] = world.client.get("/sources").json()["items"]
    assert pushed == {source["id"]}
    assert source["sha256"] == sha256(large_source.read_bytes())


def test_an_answer_that_is_lost_is_asked_for_again(
    connect: Connect, proxy: Proxy, world: World, source: Path
) -> None:
    """The first time it happened; the second time the server says that it has."""
    world.ready_target("faces")
    g = connect(proxy.url)
    proxy.down.append(lose_answer)

    model = g.models.create("merged", architecture="test_vit", target="faces")

    assert proxy.connections == 2
    assert [found.id for found in g.models.list()] == [model.id]
    world.prepare()


@pytest.mark.parametrize("deed", ["push", "dry_run", "rollback", "cancel"])
def test_what_is_repeated_happens_once(deed: str, proxy: Proxy, world: World, source: Path) -> None:
    world.ready_model()
    world.fold(7)
    waiting = world.post_source(checkpoint(8)).json()["job"]["id"]
    proxy.down.append(lose_answer)

    with Grasp(proxy.url) as grasp:
        match deed:
            case "push":
                grasp.sources.push(source, model="merged")
            case "dry_run":
                grasp.sources.push(source, model="merged", dry_run=True)
            case "rollback":
                assert grasp.models.rollback("merged", 1).number == 2
            case "cancel":
                assert grasp.jobs.cancel(waiting).status == "cancelled"
        folds = grasp.jobs.list(model="merged", kind="fold")
        trials = grasp.jobs.list(model="merged", kind="dry_run")
        versions = grasp.models.versions("merged")

    assert proxy.connections == 2
    assert len(folds) == (3 if deed == "push" else 2)
    assert len(trials) == (1 if deed == "dry_run" else 0)
    assert len(versions) == (2 if deed == "rollback" else 1)


def test_what_is_gone_already_was_deleted(proxy: Proxy, world: World) -> None:
    world.ready_target("faces")
    proxy.down.append(lose_answer)

    with Grasp(proxy.url) as grasp:
        grasp.targets.delete("faces")

    assert proxy.connections == 2
    assert world.client.get("/targets").json()["items"] == []


def test_a_download_goes_on_where_it_was_cut(
    connect: Connect, proxy: Proxy, world: World, tmp_path: Path
) -> None:
    weights = bytes(range(256)) * (LARGE // 256)
    world.ready_model()
    world.fold(1, weights=weights)
    proxy.down += [cut_after(LARGE // 3), cut_after(LARGE // 3)]
    seen: list[int] = []

    path = connect(proxy.url).models.pull(
        "merged", tmp_path / "out", progress=lambda done, _total: seen.append(done)
    )

    assert proxy.connections == 3
    assert proxy.got < 1.1 * LARGE
    assert path.read_bytes() == weights
    assert seen == sorted(seen)
    assert [found.name for found in tmp_path.iterdir()] == ["out"]


def test_a_download_that_is_damaged_leaves_nothing(
    connect: Connect, proxy: Proxy, world: World, tmp_path: Path
) -> None:
    world.ready_model()
    world.fold(1, weights=bytes(LARGE))
    old = tmp_path / "out"
    old.write_bytes(b"the version before")
    proxy.down.append(flip_after(LARGE // 2))

    with pytest.raises(Damaged, match=sha256(bytes(LARGE))):
        connect(proxy.url).models.pull("merged", old)

    assert old.read_bytes() == b"the version before"
    assert [found.name for found in tmp_path.iterdir()] == ["out"]


def test_a_job_is_followed_over_a_cut(
    connect: Connect, proxy: Proxy, world: World, source: Path
) -> None:
    """From the last state that was seen, and not from the beginning."""
    world.ready_model()
    g = connect(proxy.url)
    pushed = g.sources.push(source, model="merged")
    lease = world.claim()
    states = []

    for job in pushed.job.follow():
        states.append((job.status, job.stage))
        if job.stage == "start":
            world.progress(lease, "align", 0.1)
        elif job.stage == "align" and not job.ended:
            proxy.hang_up()
            world.progress(lease, "refine", 0.5)
        elif job.stage == "refine" and not job.ended:
            world.publish(lease)

    assert states == [
        ("running", "start"),
        ("running", "align"),
        ("running", "refine"),
        ("succeeded", "refine"),
    ]
    assert proxy.connections == 2
    assert b"\r\nLast-Event-ID: 3\r\n" in proxy.beginnings[1]


def test_patience_has_an_end(connect: Connect, proxy: Proxy, world: World) -> None:
    g = connect(proxy.url, patience=0.5)
    assert g.models.list() == []
    proxy.close()

    with pytest.raises(Unreachable):
        g.models.list()
