"""Files by their names: what a job reads, and what versions and models consist of.

A name is a path of plain words, such as `state/mean`. What models have, such as a `base`, and what
versions have do not share names, so that a job can read both. Importing this loads no torch.
"""

from __future__ import annotations

import re

TARGET, SOURCE = "target", "source"  # that a job reads, and nobody keeps by this name
WEIGHTS = "weights"  # of a version: they are what it is
BASE = "base"  # of a model: what its sources were fine-tuned from
STATES = "state/"  # of a version: what methods remember
SAFETENSORS = ".safetensors"

NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9._+-]*(/[A-Za-z0-9_][A-Za-z0-9._+-]*)*$"
MAX_NAME = 200  # characters


def state_name(method: str) -> str:
    """Of what the method of this name remembers."""
    return f"{STATES}{method}"


def download_name(owner: str, name: str) -> str:
    """What people call a file of `owner` on their disk: tensors, unless its name says otherwise."""
    plain = f"{owner}-{name.replace('/', '-')}"
    return plain if "." in name.rpartition("/")[2] else plain + SAFETENSORS


def require_name(name: str) -> None:
    """Raises ValueError for what could lead anywhere else, or is taken."""
    if (
        len(name) > MAX_NAME
        or not re.match(NAME_PATTERN, name)
        or name in (TARGET, SOURCE, WEIGHTS)
    ):
        raise ValueError(f"{name!r} is no name of a file: plain words, and slashes between them")
