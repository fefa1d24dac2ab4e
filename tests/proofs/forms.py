"""Every proof has a form that takes seconds, and one that takes minutes for those who wait."""

import os
from typing import Any

import pytest

WAITS = bool(os.environ.get("GRASP_LONG"))
LONG = (pytest.mark.long, pytest.mark.skipif(not WAITS, reason="GRASP_LONG=1 runs it"))


def short_and_long(short: Any, long: Any) -> list[Any]:
    """Values of a parameter."""
    return [pytest.param(short, id="short"), pytest.param(long, id="long", marks=LONG)]
