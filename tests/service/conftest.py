"""Every test here has a home of its own, and none of the machine's settings."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.harness import none_left
from tests.service.place import Place


@pytest.fixture
def home(no_settings: None, tmp_path: Path) -> Iterator[Path]:
    with none_left(tmp_path / "home"):
        yield tmp_path / "home"


@pytest.fixture
def place(home: Path) -> Iterator[Place]:
    place = Place(home)
    yield place
    place.database.close()
