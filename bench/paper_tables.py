"""The paper's tables on its own data sets, as bench/paper_data.py has written them.

    python bench/paper_tables.py OUTPUT --architecture NAME [--pretrained] [--labels N]
                                 [--image-size N] [--cells N] [--epochs N] [--work FOLDER]

Takes each domain as the target in turn, and runs the rows of bench/accuracy.py on it. The
other domains are its sources, trained from a common ancestor: ImageNet's weights as timm downloads
them, with --pretrained, as in the paper; else a model that has seen some of the sources' domains.
OUTPUT is a set of domains, or holds several (gender and decade). N images of the target's train
split are labelled, or all. More cells than domains begin again with other draws. Run again with
the same --work, it goes on where it was.

From Python: `list_cells(name, read_domains(folder), Settings(…), None)` are cells for
`bench.accuracy.measure` and `report`; `make_files` makes what all rows of a cell are given.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from bench.accuracy import OURS, Results, Store, code_digest, measure, report, work_folder
from bench.beds import (
    ANCESTOR_EPOCHS,
    FEWEST_VAL,
    MIXTURE,
    SOURCE_EPOCHS,
    SPLITS,
    Cell,
    Files,
    shuffle,
)
from bench.common import say
from bench.paper_data import Places, describe, explain, link, list_images
from grasp_cli.demo.experiment import train
from grasp_cli.progress import stage_bar
from grasp_cli.session import Output
from grasp_core import (
    CheckpointInfo,
    ConfigError,
    ModelSpec,
    TargetError,
    open_task,
    write_checkpoint,
)
from grasp_core.errors import GraspError

SCRATCH_LR, PRETRAINED_LR = 2e-3, 5e-4
REFINE: Mapping[str, Any] = {}  # what these targets ask of every refinement


def read_domains(folder: Path) -> list[Path]:
    """The domains of a set, all with the same classes. Raises TargetError if they are no set."""
    domains = _find_domains(folder)
    if len(domains) < 2:
        raise TargetError(
            f"{folder} holds no two domains: {describe(folder)}",
            hint="name what `paper_data.py yearbook` or `paper_data.py clear` has written",
        )
    for domain in domains[1:]:
        if _classes(domain) != _classes(domains[0]):
            raise TargetError(
                f"{domain} has other classes than {domains[0]}",
                hint="write all domains with one command",
            )
    return domains


def _find_domains(folder: Path) -> list[Path]:
    folders = sorted(folder.iterdir()) if folder.is_dir() else []
    return [domain for domain in folders if all((domain / split).is_dir() for split in SPLITS)]


def find_sets(folder: Path) -> dict[str, list[Path]]:
    """By name: the set of domains that a folder is, or those that it holds."""
    inner = sorted(folder.iterdir()) if folder.is_dir() and not _find_domains(folder) else []
    sets = [each for each in inner if _find_domains(each)] or [folder]
    return {each.resolve().name: read_domains(each) for each in sets}


def _classes(domain: Path) -> tuple[str, ...]:
    return tuple(sorted(folder.name for folder in (domain / "train").iterdir()))


@dataclass(frozen=True)
class Settings:
    """What tables are made with."""

    architecture: str
    labels: int | None = None  # of the target's train split; None: all
    image_size: int = 224
    epochs: int = SOURCE_EPOCHS
    pretrained: bool = False


def make_files(
    domains: Sequence[Path], target: int, folder: Path, settings: Settings, draw: int = 0
) -> Files:
    """An ancestor, a source of each domain but the target's, and the target, of which a part is
    labelled. What is labelled, and the order of the sources, are drawn by the number `draw`."""
    spec = ModelSpec(
        architecture=settings.architecture,
        classes=_classes(domains[0]),
        preprocessing={"image_size": settings.image_size, "crop_pct": 1.0},
    )
    labels, most = settings.labels, dict[str, int | None](train=None, val=None, test=None)
    if labels is not None:
        if labels < len(spec.classes):
            classes = len(spec.classes)
            raise ConfigError(f"{labels} labels are too few for {classes} classes: one each")
        most = {"train": labels, "val": max(FEWEST_VAL, labels // 3), "test": None}
    others = [domain for domain in domains if domain != domains[target]]
    data = _draw([domains[target]], folder / "target", most, draw)
    task = open_task(data, spec, cache_dir=folder / "cache")
    ancestor = _make_ancestor(others, folder, spec, settings)
    lr = PRETRAINED_LR if settings.pretrained else SCRATCH_LR
    make_source = partial(_train, folder=folder, spec=spec, lr=lr, ancestor=ancestor)
    sources = [make_source([each], each.name, epochs=settings.epochs) for each in others]
    return Files(spec, ancestor, shuffle(sources, domains[0].parent.name, draw), task, REFINE)


def _make_ancestor(others: list[Path], folder: Path, spec: ModelSpec, settings: Settings) -> Path:
    if not settings.pretrained:
        make = partial(_train, others, "ancestor", folder, spec, epochs=ANCESTOR_EPOCHS)
        return make(lr=SCRATCH_LR, ancestor=None, most=MIXTURE)
    import timm
    import torch

    torch.manual_seed(0)  # of the new head
    model = timm.create_model(spec.architecture, pretrained=True, num_classes=len(spec.classes))
    write_checkpoint(folder / "ancestor", model.state_dict(), CheckpointInfo(classes=spec.classes))
    return folder / "ancestor"


def _train(
    domains: Sequence[Path],
    name: str,
    folder: Path,
    spec: ModelSpec,
    *,
    epochs: int,
    lr: float,
    ancestor: Path | None,
    most: int | None = None,
) -> Path:
    """A model of the domains' train splits."""
    data = _draw(domains, folder / f"data-{name}", {"train": most}, 0)
    task = open_task(data, spec, cache_dir=folder / "cache", fractions=(1.0, 0.0, 0.0))
    with stage_bar(Output(as_json=False), name) as show:
        return train(
            spec,
            task,
            folder / name,
            epochs=epochs,
            lr=lr,
            ancestor=ancestor,
            progress=lambda share, loss: show("train", share, {"loss": loss}),
        )


def _draw(
    domains: Sequence[Path], output: Path, most: Mapping[str, int | None], number: int
) -> Path:
    """At most so many images of some splits, of all classes in turn."""
    places: Places = {}
    for split, count in most.items():
        rng, columns = np.random.default_rng([number, SPLITS.index(split)]), []
        for label in _classes(domains[0]):
            folders = [domain / split / label for domain in domains]
            files = [file for each in folders if each.is_dir() for file in list_images(each)]
            columns.append([files[place] for place in rng.permutation(len(files))])
        in_turn = (file for file in chain.from_iterable(zip_longest(*columns)) if file)
        for file in islice(in_turn, count):
            name = f"{file.parents[2].name}-{file.name}"
            places[Path(split, file.parent.name, name)] = file
    link(places, output, output.name)
    return output


def list_cells(
    name: str, domains: Sequence[Path], settings: Settings, count: int | None
) -> list[Cell]:
    """Every domain as the target in turn; then again, with other draws."""
    digest = _digest(domains)
    cells = []
    for number in range(count or len(domains)):
        draw, target = divmod(number, len(domains))
        definition = asdict(settings) | {"target": domains[target].name, "data": digest}
        make = partial(make_files, domains, target, settings=settings, draw=draw)
        cells.append(Cell(name, number, definition | {"refine": dict(REFINE)}, make))
    return cells


def _digest(domains: Sequence[Path]) -> str:
    """Of this file, and of all names and sizes of images: their bytes would take too long."""
    digest = sha256(Path(__file__).read_bytes())
    for file in sorted(file for domain in domains for file in domain.rglob("*") if file.is_file()):
        about = f"{file.relative_to(domains[0].parent)}\0{file.stat().st_size}\0"
        digest.update(about.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def print_tables(folder: Path, settings: Settings, count: int | None, work: Path | None) -> None:
    """The rows for every target, and their means over all targets of a set."""
    sets = find_sets(folder)
    with work_folder(work) as kept:
        store = Store(kept / "results", code_digest())
        for name, domains in sets.items():
            by_target: dict[str, list[Results]] = {}
            for cell in list_cells(name, domains, settings, count):
                target = cell.definition["target"]
                by_target.setdefault(target, []).append(measure(cell, store))
                accuracy = by_target[target][-1][OURS.name].accuracy
                say(f"{name}, target {target}: our default {100 * accuracy:.1f} %")
            for target, found in by_target.items():
                report(f"{name}, target {target}", found)
            if len(by_target) > 1:
                cells = [each for found in by_target.values() for each in found]
                report(f"{name}, all targets", cells)


def main(words: Sequence[str] | None = None) -> int:
    args = parse_arguments(words)
    names = ("architecture", "labels", "image_size", "epochs", "pretrained")
    settings = Settings(**{name: getattr(args, name) for name in names})
    try:
        print_tables(args.output, settings, args.cells, args.work)
    except GraspError as error:
        return explain(error)
    return 0


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, help="what bench/paper_data.py has written")
    parser.add_argument("--architecture", required=True, help="of timm")
    parser.add_argument("--pretrained", action="store_true", help="begin with timm's weights")
    parser.add_argument("--labels", type=int, help="of the target's train split; all without")
    parser.add_argument("--image-size", type=int, default=Settings.image_size)
    parser.add_argument("--cells", type=int, help="of each set; one for each domain without")
    parser.add_argument("--epochs", type=int, default=Settings.epochs, help="to train a source")
    parser.add_argument("--work", type=Path, help="keep what is known there, for another run")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
