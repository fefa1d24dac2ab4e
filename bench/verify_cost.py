"""What comparing a fold's inputs with their hashes adds to it.

    python bench/verify_cost.py [--quick] [--repeats N]

Before a fold a worker reads the merged model and the source through; after it, and before the next
one, it looks whether it knows the files. Processor seconds, one thread, medians over the turns; the
fold has two epochs of four steps, which is far less than anybody's.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.common import CASES, Promise, Setting, prepare, print_table, say, settle
from bench.fold_speed import EPOCHS, STEPS, config_for, processor_seconds
from grasp_core.files import sha256_file
from registry.blobs import integrity
from registry.blobs.integrity import Verifier

LIMIT = 0.05  # of the fold


def turn(setting: Setting) -> list[float]:
    """Seconds of the fold, of the first look at both files, and of all later ones together."""
    files = {path: sha256_file(path) for path in (setting.merged, setting.source)}
    verifier = Verifier()

    def look() -> None:
        for path, sha256 in files.items():
            verifier.check(path, sha256)

    first = processor_seconds(look)
    fold = processor_seconds(lambda: setting.fold(config_for(setting, EPOCHS)))
    return [fold, first, processor_seconds(look)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="mobilevit_xs only")
    parser.add_argument("--repeats", type=int, default=3, help="turns that count (default 3)")
    args = parser.parse_args()
    integrity.SETTLED_NS = 0  # files of a moment ago are known too: nobody writes to them
    rows, promises = [], []
    with TemporaryDirectory(prefix="grasp-bench-") as folder:
        for case in CASES[:1] if args.quick else CASES:
            setting = prepare(case, Path(folder, case.architecture), None, STEPS)
            turns = []
            for number in range(-1, args.repeats):  # the first one warms up
                say(f"{case}: turn {number + 1} of {args.repeats}")
                turns.append(turn(setting))
            fold, first, later = map(median, zip(*turns[1:], strict=True))
            megabytes = (setting.merged.stat().st_size + setting.source.stat().st_size) / 1e6
            share = (first + later) / fold
            cells = (f"{megabytes:.0f}", f"{fold:.2f}", f"{first:.3f}", f"{later:.6f}")
            rows.append((case, *cells, f"{share:.2%}"))
            promises.append(Promise(f"{case}: verifying / folding", LIMIT, share))
    heads = ("", "MB", "fold", "first look", "later looks", "adds")
    print_table(f"A fold of {EPOCHS} epochs of {STEPS} steps: processor seconds", heads, rows)
    return settle(promises)


if __name__ == "__main__":
    raise SystemExit(main())
