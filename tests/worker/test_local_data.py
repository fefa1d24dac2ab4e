"""Data that is used where it lies, each time that a job needs it."""

from pathlib import Path

import pytest

from grasp_core.errors import TargetError
from worker.jobs import local_data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "data" / "naïve faces"
    folder.mkdir(parents=True)
    return folder


def test_it_is_where_it_was(folder: Path) -> None:
    assert local_data(folder.as_uri(), ()) == folder
    assert local_data(folder.as_uri(), [folder.parent]) == folder


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    folder = tmp_path.resolve() / "faces\udcff"
    folder.mkdir()
    assert local_data(folder.as_uri(), ()) == folder


@pytest.mark.parametrize("part", ["itself", "a folder on the way"])
def test_a_link_put_there_since_leads_nowhere(folder: Path, tmp_path: Path, part: str) -> None:
    uri = folder.as_uri()
    secrets = tmp_path / "secrets"
    (secrets / folder.name).mkdir(parents=True)
    if part == "itself":
        folder.rmdir()
        folder.symlink_to(secrets)
    else:
        folder.parent.rename(tmp_path / "before")
        (tmp_path / "data").symlink_to(secrets)

    for roots in ((), (tmp_path / "another",)):
        with pytest.raises(TargetError) as refusal:
            local_data(uri, roots)
        assert "secrets" not in str(refusal.value)


def test_a_link_within_the_data_roots_is_followed_once(folder: Path) -> None:
    """As a release before this one stored it, or as another machine mounts it."""
    link = folder.parent / "newest"
    link.symlink_to(folder)

    assert local_data(link.as_uri(), [folder.parent]) == folder
