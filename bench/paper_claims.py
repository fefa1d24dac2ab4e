"""The paper's claims about its own parts: the threshold, alignment and refinement, the order.

    python bench/paper_claims.py --data FOLDER [--cells 3] [--beds digits clothes]

On the beds of bench/accuracy.py, with its budget and learning rate. Rows are GRASP alone with other
thresholds, without its refinement and without its alignment, and our default with the sources in
reverse. Differences to GRASP alone with the default threshold are paired, cell by cell; ± is one
standard error. About eight minutes for three cells of each bed, on one core. `preset: "paper"` and
the controls stand in bench/accuracy.py; time and memory in fold_speed.py and fold_memory.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench.accuracy import Folds, Outcome, pair
from bench.beds import QUICK, list_cells
from bench.common import print_table, say

GRASP: Mapping[str, Any] = {"method": "grasp"}
CHAIN: dict[str, Mapping[str, Any]] = {
    "tau auto, the default": GRASP,
    **{f"tau {tau}": {**GRASP, "tau": tau} for tau in (0.0, 0.1, 0.3, 0.6, 0.9)},
    "alignment without refinement": {**GRASP, "refine": {"steps": 0}},
    "refinement without alignment (keep)": {"method": "keep"},
    "our default": {},
}
FIRST, REVERSED = next(iter(CHAIN)), "our default, sources in reverse"


def measure(
    beds: Sequence[str], data: Path, count: int
) -> Iterator[tuple[str, dict[str, Outcome]]]:
    """By bed, the rows of each cell."""
    for bed in beds:
        with TemporaryDirectory(prefix="claims-") as shared:
            for cell in list_cells(bed, data, Path(shared), QUICK, count):
                with TemporaryDirectory(prefix="claims-") as folder:
                    files = cell.prepare(Path(folder))
                    folds = Folds(files, Path(folder))
                    rows = {name: folds.in_turn(values) for name, values in CHAIN.items()}
                    back = Path(folder, "back")
                    back.mkdir()
                    turned = files._replace(sources=files.sources[::-1])
                    rows[REVERSED] = Folds(turned, back).in_turn({})
                say(str(cell))
                yield bed, rows


def print_rows(title: str, cells: Sequence[Mapping[str, Outcome]]) -> None:
    lines = []
    for name in cells[0]:
        accuracies = [100 * cell[name].accuracy for cell in cells]
        gain = pair(accuracies, [100 * cell[FIRST].accuracy for cell in cells])
        shown = "" if gain is None or name == FIRST else f"{gain.mean:+.1f} ± {gain.error or 0:.1f}"
        lines.append((name, f"{sum(accuracies) / len(cells):.1f}", shown))
    heads = ("", "accuracy %", "row - the first: points")
    print_table(f"{title}, {len(cells)} cells", heads, lines)


def print_spread(cells: Sequence[Mapping[str, Outcome]]) -> None:
    """How much the order of the sources moves what comes out."""
    moves = [abs(cell["our default"].accuracy - cell[REVERSED].accuracy) for cell in cells]
    print(f"\nthe order moves our default by {100 * sum(moves) / len(moves):.1f} points on average")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="as of bench/accuracy.py")
    parser.add_argument("--cells", type=int, default=3, help="of each bed")
    parser.add_argument("--beds", nargs="+", default=["digits", "clothes"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    by_bed: dict[str, list[dict[str, Outcome]]] = {}
    for bed, rows in measure(args.beds, args.data, args.cells):
        by_bed.setdefault(bed, []).append(rows)
    for bed, cells in by_bed.items():
        print_rows(bed, cells)
    every = [cell for cells in by_bed.values() for cell in cells]
    print_rows("all", every)
    print_spread(every)


if __name__ == "__main__":
    main()
