"""Do what the pages say, as a reader would, and fail at the first thing that is not as printed.

    python -m scripts.tryout [--clone] [PAGE …]

Each page (README.md, docs/tutorial.md, docs/target-data.md) gets a folder and a shell of its own.
Without --clone the folder holds links to the files of this tree, so that nothing a page writes ends
up here; with it, a fresh clone of what is committed, whose environment is set up by the page's own
commands. Services listen on a free port: where a page says 8000, that one is meant.
"""

import argparse
import sys

from scripts.tryout.places import ROOT, fresh_clones, linked_trees
from scripts.tryout.reader import Differs, Reader

PAGES = ("README.md", "docs/tutorial.md", "docs/target-data.md")


def main() -> None:
    parser = argparse.ArgumentParser(description="Do what the pages say.")
    parser.add_argument("--clone", action="store_true", help="in a fresh clone of the repository")
    parser.add_argument("pages", nargs="*", default=PAGES, help="README.md and the tutorial")
    given = parser.parse_args()
    places = fresh_clones() if given.clone else linked_trees()
    try:
        for page, folder in zip(given.pages, places, strict=False):
            commands = Reader(ROOT / page, folder).read()
            print(f"{page}: all {commands} commands do as printed")
    except Differs as difference:
        sys.exit(str(difference))
    finally:
        places.close()


if __name__ == "__main__":
    main()
