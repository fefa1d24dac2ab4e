"""Whether a method can go on from a version: some need their own state of all folds before."""

from grasp_core.methods import METHODS
from registry.files import find_file
from registry.tables import Version


def require_history(version: Version | None, name: str) -> None:
    """Raises ConfigError where the method of this name cannot fold into that version."""
    method = METHODS.get(name)  # workers may have one that is not installed here
    if method is None or not method.needs.history:
        return
    if version is None or find_file(version.files, method.state_name) is None:
        method.require_beginning(first=version is None)
