"""The exception trees that modules draw in their docstrings are those that they have."""

import importlib
import inspect
import re

import pytest

DRAWN = re.compile(r"^((?:│   |    )*)[├└]── (\w+)|^(\w+Error)(?= |$)", re.MULTILINE)


def drawn(text: str) -> dict[str, str | None]:
    """Of each class in a drawing, the one above it."""
    above: dict[int, str] = {}
    parents = {}
    for indent, name, root in DRAWN.findall(text):
        depth = 0 if root else len(indent) // 4 + 1
        above[depth] = root or name
        parents[root or name] = above.get(depth - 1)
    return parents


@pytest.mark.parametrize(
    "module",
    [
        "app.http.downloads",
        "app.fetching.base",
        "app.intake.multipart",
        "app.intake.uploads",
        "grasp_client.errors",
        "grasp_core.errors",
        "registry.blobs.base",
        "registry.errors",
    ],
)
def test_the_tree_of_errors_is_drawn_as_it_is(module: str) -> None:
    found = importlib.import_module(module)
    tree = drawn(inspect.getdoc(found) or "")
    classes = {
        name: kind.__base__.__name__
        for name, kind in inspect.getmembers(found, inspect.isclass)
        if issubclass(kind, Exception) and kind.__module__ == module and kind.__base__
    }

    root = next(iter(tree))

    assert tree.pop(root) is None
    classes.pop(root, None)
    assert tree == classes
