"""Every command of the pages does what they say, here; `python -m scripts.tryout --clone` does them
in a fresh clone with an environment of its own."""

from contextlib import closing

import pytest

from scripts.tryout.places import ROOT, linked_trees
from scripts.tryout.reader import Reader

README = pytest.param("README.md", marks=pytest.mark.proof)
TUTORIAL = pytest.param("docs/tutorial.md", marks=pytest.mark.proof)  # and for `make rounding`


@pytest.mark.parametrize("page", [README, TUTORIAL, "docs/target-data.md"])
def test_the_commands_of_a_page_work_as_printed(page: str) -> None:
    with closing(linked_trees()) as places:
        assert Reader(ROOT / page, next(places)).read() > 5
