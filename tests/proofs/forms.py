"""Every proof has a form that takes seconds, and one that takes minutes for those who wait."""

import os
from typing import Any

import pytest

LONG = pytest.mark.skipif(
    not os.environ.get("GRASP_LONG"), reason="takes minutes: GRASP_LONG=1 runs it"
)


def short_and_long(short: Any, long: Any) -> list[Any]:
    """Values of a parameter."""
    return [pytest.param(short, id="short"), pytest.param(long, id="long", marks=LONG)]
