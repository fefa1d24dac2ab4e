"""The names of timm's architectures, for those who have no timm. Importing this loads no torch."""

from functools import cache
from importlib.resources import files


@cache
def read_names() -> frozenset[str]:
    """As `make docs` has written them, of the timm that requirements.lock names."""
    return frozenset(files(__package__).joinpath("names.txt").read_text("utf-8").split())
