"""Every proof has a form that takes seconds, and one that takes minutes for those who wait."""

import os
import random
from typing import Any

import pytest

WAITS = bool(os.environ.get("GRASP_LONG"))
LONG = (pytest.mark.long, pytest.mark.skipif(not WAITS, reason="GRASP_LONG=1 runs it"))


def short_and_long(short: Any, long: Any) -> list[Any]:
    """Values of a parameter."""
    return [pytest.param(short, id="short"), pytest.param(long, id="long", marks=LONG)]


def choose_seed(variable: str) -> int:
    """Short forms do the same in every run; long ones draw, and the variable repeats one."""
    return int(os.environ.get(variable) or (random.randrange(2**32) if WAITS else 0))
