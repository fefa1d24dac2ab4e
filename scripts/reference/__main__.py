"""Write what says the same as the code from the code: pages of docs/reference/, .env.example.

    python -m scripts.reference

They are committed, so that they can be read where the code is; tests/docs/test_reference.py fails
when one is no longer what this writes.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from grasp_core.methods import METHODS
from scripts.reference import architectures, cli, client, http, merge, methods, settings

ROOT = Path(__file__).parents[2]
PAGES: dict[str, Callable[[], str]] = {
    ".env.example": settings.env_example,
    "docs/reference/cli.md": cli.page,
    "docs/reference/client.md": client.page,
    "docs/reference/http.md": http.page,
    "docs/reference/merge.md": merge.page,
    "docs/reference/methods.md": methods.page,
    "grasp_core/kinds/image/names.txt": architectures.names,
    **{
        f"docs/reference/methods/{method.name}.md": partial(methods.method_page, method)
        for method in METHODS.values()
    },
    "docs/reference/settings.md": settings.page,
}


def main() -> None:
    for name, page in PAGES.items():
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
