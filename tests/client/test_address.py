"""Where a client goes if nobody says: to the service that runs here."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from grasp_cli.demo.command import _where
from grasp_client import AsyncGrasp, Grasp
from grasp_client.address import DEFAULT_URL, _find_running
from registry.process.home import lock_home, open_home, write_address
from registry.process.settings import Settings

URL = "http://127.0.0.1:8123"

pytestmark = pytest.mark.usefixtures("no_settings")


@contextmanager
def running(home: str = ".grasp", url: str = URL) -> Iterator[None]:
    """What `grasp serve` does with its home."""
    settings = Settings(home=Path(home))
    open_home(settings)
    with lock_home(settings), write_address(settings, url):
        yield


def url() -> str:
    with Grasp() as grasp:
        return grasp.url


def leave(text: bytes, home: str = ".grasp") -> None:
    """An address, as one that was killed has left it."""
    with running(home):
        pass
    Path(home, "address").write_bytes(text)


async def url_of_async() -> str:
    async with AsyncGrasp() as grasp:
        return grasp.url


def test_the_service_that_runs_here_is_found() -> None:
    with running():
        assert url() == asyncio.run(url_of_async()) == URL
        assert Path(".grasp/address").stat().st_mode & 0o777 == 0o600

    assert url() == DEFAULT_URL
    assert not Path(".grasp/address").exists()


def test_another_home_is_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    with running("elsewhere"):
        assert url() == DEFAULT_URL
        monkeypatch.setenv("GRASP_HOME", "elsewhere")
        assert url() == URL


def test_who_names_a_server_goes_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with running():
        monkeypatch.setenv("GRASP_URL", "http://127.0.0.1:9000/")
        assert url() == "http://127.0.0.1:9000"
        with Grasp("http://127.0.0.1:9001") as grasp:
            assert grasp.url == "http://127.0.0.1:9001"


def test_the_address_of_one_that_was_killed_is_not_believed() -> None:
    leave(URL.encode())

    assert url() == DEFAULT_URL
    assert url() == DEFAULT_URL  # and the first look has locked nothing for good
    with lock_home(Settings(home=Path(".grasp"))):  # the next starts, and cannot be reached yet
        assert url() == DEFAULT_URL


@pytest.mark.parametrize("text", [b"", b"8123", b"ftp://host", b"http://[", b"\xff\xfe", b"\0"])
def test_what_is_no_address_is_passed_over(text: bytes) -> None:
    with running():
        Path(".grasp/address").write_bytes(text)
        assert url() == DEFAULT_URL


def test_a_folder_instead_of_the_file_is_passed_over() -> None:
    with lock_home(Settings(home=Path())):
        Path("address").mkdir()
        assert _find_running(Path()) is None


def test_what_another_user_left_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    with running():
        ours = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: ours + 1)
        assert url() == DEFAULT_URL


def test_whoever_looks_does_not_take_the_lock() -> None:
    with running(), Path(".grasp/serve.lock").open() as file:
        assert url() == URL
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_the_demo_names_its_server_only_where_that_is_needed() -> None:
    assert (_where(DEFAULT_URL), _where(URL)) == ("", f" --url {URL}")
    with running():
        assert (_where(URL), _where(DEFAULT_URL)) == ("", f" --url {DEFAULT_URL}")
