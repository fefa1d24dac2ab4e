"""The home: nobody but its user may look into it."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from registry.process.home import open_home
from registry.process.settings import Settings
from tests.users import another_user, as_root

pytestmark = pytest.mark.usefixtures("no_settings")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def readable_home(tmp_path: Path) -> Settings:
    """As an earlier release has left it."""
    settings = Settings(home=tmp_path / "home")
    for folder in (settings.blob_folder, settings.work_folder):
        folder.mkdir(parents=True)
    (settings.home / "grasp.db").touch()
    assert {mode(path) for path in (settings.home, *settings.home.iterdir())} == {0o755, 0o644}
    return settings


def test_a_new_home_and_all_that_is_written_into_it_are_private(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "deep" / "home")

    open_home(settings)

    (settings.home / "file").touch()
    settings.work_folder.mkdir()
    assert mode(settings.home) == 0o700
    assert mode(settings.home / "file") == 0o600
    assert mode(settings.work_folder) == 0o700


def test_a_home_that_others_could_read_is_closed(tmp_path: Path) -> None:
    settings = readable_home(tmp_path)

    open_home(settings)

    assert mode(settings.home / "grasp.db") == 0o600
    assert mode(settings.blob_folder) == mode(settings.work_folder) == mode(settings.home) == 0o700


@as_root
def test_another_user_finds_nothing_there() -> None:
    with TemporaryDirectory() as folder:  # pytest's own are closed to others anyway
        Path(folder).chmod(0o755)
        settings = readable_home(Path(folder))
        with another_user():
            assert list(settings.home.iterdir())

        open_home(settings)

        with another_user(), pytest.raises(PermissionError):
            list(settings.home.iterdir())


def test_what_somebody_else_owns_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = readable_home(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    open_home(settings)

    assert mode(settings.home) == 0o755


def test_a_folder_for_everybody_is_not_closed(tmp_path: Path) -> None:
    settings = readable_home(tmp_path)
    settings.home.chmod(0o1777)

    open_home(settings)

    assert mode(settings.home) == 0o1777
