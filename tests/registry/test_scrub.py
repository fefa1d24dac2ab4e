"""Every damaged or missing blob is found, and nothing else is named."""

import errno
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grasp_cli.main import cli
from registry.blobs import open_store
from registry.blobs.base import Blob, BlobDamaged
from registry.blobs.collection import find_uses
from registry.blobs.damage import scrub
from registry.blobs.local import LocalBlobStore
from registry.database import Database
from registry.process.settings import Settings
from registry.targets import create_target
from registry.uploads import append_part, create_upload
from tests.registry.conftest import World, blob


@pytest.fixture
def store(tmp_path: Path) -> LocalBlobStore:
    return LocalBlobStore(tmp_path / "blobs")


def put(store: LocalBlobStore, data: bytes) -> Blob:
    with store.create() as writer:
        writer.write(data)
        return writer.commit()


def path_of(store: LocalBlobStore, sha256: str) -> Path:
    return store.root / sha256[:2] / sha256


def flip(path: Path, bit: int) -> None:
    """Twice is as if nothing had happened."""
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(bit // 8)
        [byte] = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def problems(database: Database, store: LocalBlobStore) -> dict[str, str]:
    return {r.sha256: r.problem for r in scrub(database, store) if r.problem}


def test_every_flipped_bit_is_found(store: LocalBlobStore, world: World) -> None:
    name = put(store, b"sixteen bytes!!!").sha256
    sound = put(store, b"sound").sha256

    for bit in range(16 * 8):
        flip(path_of(store, name), bit)
        assert problems(world.database, store) == {name: "damaged"}
        flip(path_of(store, name), bit)

    assert problems(world.database, store) == {}
    store.verify(sound)


def test_any_flipped_bit_of_a_large_blob_is_found(store: LocalBlobStore) -> None:
    size = 3_000_001
    name = put(store, os.urandom(size)).sha256
    some = random.Random(0).sample(range(size * 8), 20)

    for bit in (0, size * 8 - 1, *some):
        flip(path_of(store, name), bit)
        with pytest.raises(BlobDamaged, match=name):
            store.verify(name)
        flip(path_of(store, name), bit)

    store.verify(name)


def test_lost_and_added_bytes_are_found(store: LocalBlobStore, world: World) -> None:
    name = put(store, b"data").sha256
    path_of(store, name).chmod(0o644)
    for damaged in (b"", b"dat", b"data\0"):
        path_of(store, name).write_bytes(damaged)
        assert problems(world.database, store) == {name: "damaged"}


def test_every_use_of_a_blob_is_known(store: LocalBlobStore, world: World) -> None:
    """Which are missing here, because this world's rows come without blobs."""
    model = world.ready_model("faces", keep_sources=True, files={"base": blob("six")})
    world.fold(model, "one", weights="first", state="seven")
    source, _, _ = world.offer(model, "two")
    trial = world.try_out(model, "three")
    with world.database.write() as session:
        upload = create_upload(session, "ann", 9, {}, world.now)
        append_part(session, upload.id, 0, blob("four"), world.now)
        archive, _ = create_target(session, "ann", "archive", blob=blob("five"))

    reports = {r.sha256: r for r in scrub(world.database, store)}

    assert {sha256: (r.problem, r.uses) for sha256, r in reports.items()} == {
        blob("first").sha256: ("missing", ["version 1 of faces"]),
        blob("one").sha256: ("missing", [f"source {_source(world, 'one')}"]),
        blob("two").sha256: ("missing", [f"source {source.id}"]),
        blob("three").sha256: ("missing", [f"job {trial.id}"]),
        blob("four").sha256: ("missing", [f"upload {upload.id}"]),
        blob("five").sha256: ("missing", [f"target {archive.name}"]),
        blob("six").sha256: ("missing", ["base of faces"]),
        blob("seven").sha256: ("missing", ["state/grasp of version 1 of faces"]),
    }
    assert sorted(r.number for r in reports.values()) == list(range(1, 9))
    assert {r.total for r in reports.values()} == {8}


def _source(world: World, content: str) -> str:
    with world.database.read() as session:
        uses = find_uses(session)
    [use] = uses[blob(content).sha256]
    return use.removeprefix("source ")


def test_what_was_pruned_or_folded_is_not_missed(store: LocalBlobStore, world: World) -> None:
    model = world.ready_model(keep_versions=1)
    world.fold(model, "one", weights="first")
    world.fold(model, "two", weights="second")
    put(store, b"second")

    assert problems(world.database, store) == {}


def test_what_is_deleted_meanwhile_is_not_missed(store: LocalBlobStore, world: World) -> None:
    names = sorted(put(store, data).sha256 for data in (b"a", b"b", b"c"))
    reports = scrub(world.database, store)
    next(reports)

    store.discard(names[1], lambda _: False)

    assert [report.problem for report in reports] == [None, None]


def test_a_blob_that_cannot_be_read_is_told_and_the_rest_is_read(
    store: LocalBlobStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = sorted(put(store, data).sha256 for data in (b"a", b"b"))
    flip(path_of(store, names[1]), 0)
    real = Path.open

    def failing(path: Path, *args: Any) -> Any:
        if path.name == names[0]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *args)

    monkeypatch.setattr(Path, "open", failing)

    assert problems(world.database, store) == {names[0]: "unreadable", names[1]: "damaged"}


# The command


@pytest.fixture
def service(no_settings: None, migrated_file: Path) -> Iterator[tuple[World, LocalBlobStore]]:
    """Where the command looks, with a model whose blobs are all there."""
    settings = Settings()
    settings.home.mkdir()
    shutil.copy(migrated_file, settings.home / "grasp.db")
    database = Database(settings.database)
    world, store = World(database), open_store(settings)
    assert isinstance(store, LocalBlobStore)
    world.fold(world.ready_model("faces"), "one", weights="first")
    put(store, b"first")
    yield world, store
    database.close()


def test_the_command_is_content(service: tuple[World, LocalBlobStore]) -> None:
    result = CliRunner().invoke(cli, ["admin", "scrub"])

    assert (result.exit_code, result.stdout) == (0, "")
    assert "1 of 1" in result.stderr


def test_the_command_names_what_is_damaged_or_missing(
    service: tuple[World, LocalBlobStore],
) -> None:
    world, store = service
    world.fold(world.ready_model("other"), "two", weights="second")
    flip(path_of(store, blob("first").sha256), 3)

    result = CliRunner().invoke(cli, ["admin", "scrub"])

    assert result.exit_code == 1
    assert sorted(result.stdout.splitlines()) == [
        f"damaged {blob('first').sha256} version 1 of faces",
        f"missing {blob('second').sha256} version 1 of other",
    ]
    assert "2 of 2" in result.stderr


def test_a_store_that_cannot_be_opened_is_told(
    service: tuple[World, LocalBlobStore], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRASP_BLOB_URL", f"file://{tmp_path}/file/blobs")

    result = CliRunner().invoke(cli, ["admin", "scrub"])

    assert result.exit_code == 2
    assert "cannot make the folder" in result.stderr
