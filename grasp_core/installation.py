"""How to get what is not installed. Importing this loads no torch."""

from importlib.metadata import version


def advise_install(extra: str) -> str:
    """Of an extra of this package, which is on no index: from a checkout, or from its wheel."""
    wheel = f"dist/grasp_merge-{version('grasp-merge')}-py3-none-any.whl"
    return (
        f"in a checkout, `make serve` installs it; elsewhere, `pip install '{wheel}[{extra}]'`"
        " does, with the wheel that `make wheel` writes there"
    )
