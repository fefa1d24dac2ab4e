"""Merge parameters of tests that are about something else than candidates."""

from __future__ import annotations

from typing import Any

from grasp_core.config import FoldConfig
from grasp_core.parameters import parse_config


def grasp_alone(**values: Any) -> FoldConfig:
    """A fold with one candidate: one refinement instead of four."""
    return parse_config({"method": "grasp", **values})
