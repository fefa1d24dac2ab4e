"""Doing things as another user of this machine, which root can."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

ANOTHER = 33  # any that is neither ours nor root; of Debian's it is www-data

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@contextmanager
def another_user() -> Iterator[None]:
    """What this process opens meanwhile, files and connections, it opens as that user."""
    os.seteuid(ANOTHER)
    try:
        yield
    finally:
        os.seteuid(0)
