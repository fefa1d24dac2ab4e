"""Whether methods can go on from a version: some need their own state of all folds before."""

from collections.abc import Iterable

from grasp_core.methods import METHODS
from registry.files import find_file
from registry.tables import Version


def require_histories(version: Version | None, names: Iterable[str]) -> None:
    """Raises ConfigError where a method of these names cannot fold into that version."""
    for name in names:
        method = METHODS.get(name)  # workers may have one that is not installed here
        if method is None or not method.needs.history:
            continue
        if version is None or find_file(version.files, method.state_name) is None:
            method.require_beginning(first=version is None)
