"""Checkpoints that take long to train: once in a run, by the process that needs them first."""

import fcntl
from pathlib import Path
from typing import NamedTuple

import torch

from examples.digits import SITES, TARGET_SHADE, write_domain, write_sources


class Digits(NamedTuple):
    """A target, and three sources that were trained in other light."""

    target: Path
    sources: list[Path]


def trained_digits(folder: Path) -> Digits:
    """Those of `examples/digits.py`, in a folder that is the same for all processes of a run."""
    folder.mkdir(exist_ok=True)
    done = folder / "done"
    digits = Digits(folder / "target.zip", [folder / f"{site}.safetensors" for site in SITES])
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            torch.set_num_threads(1)  # so small a model is slower with more
            write_domain(digits.target, TARGET_SHADE)
            assert list(write_sources(folder)) == digits.sources
            done.touch()
    return digits
