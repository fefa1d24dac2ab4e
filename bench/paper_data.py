"""The paper's data sets, from their public layouts; bench/paper_tables.py takes what this writes.

    python bench/paper_data.py yearbook FOLDER OUTPUT
    python bench/paper_data.py clear FOLDER OUTPUT [--classes NAME …]

Both write a folder per domain, DOMAIN/train|val|test/CLASS/image, of hard links where the
disk allows them: each is a target for `grasp targets create` and `open_task`. Splits that a data
set names are kept; others are drawn per class with a fixed seed: 70 % train, 10 % validate, 20 %
test. Nothing is written where something is wrong.

Yearbook: FOLDER is the unpacked faces_aligned_small_mirrored_co_aligned_cropped_cleaned, in which F
and M lie, or the folder around it. Domains are the paper's four periods, in OUTPUT/gender with the
classes F and M, and in OUTPUT/decade with `earlier` and `later`, the decades of a period: the paper
does not say which of both it means.

CLEAR-10 and CLEAR-100: FOLDER holds train_image_only (or train), and test where it was downloaded,
or is one of them. Each has labeled_images/BUCKET/CLASS/image.jpg and, perhaps, a
labeled_metadata.json, whose lists of images then count. Buckets 1 to 10 are years, and make five
bins of two; a bucket 0 is left out. The paper does not name its 30 classes of CLEAR-100: without
--classes, they are the first 30 in alphabetical order without BACKGROUND, which of CLEAR-10 are all
ten.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from bench.beds import (
    SPLITS,
)
from bench.common import print_table
from grasp_cli.progress import stage_bar
from grasp_cli.session import Output
from grasp_core import (
    TargetError,
)
from grasp_core.data.splits import UNGIVEN, assign_splits
from grasp_core.errors import GraspError
from grasp_core.kinds.image.decode import is_image

PORTRAITS = "faces_aligned_small_mirrored_co_aligned_cropped_cleaned"
GENDERS = ("F", "M")
PERIODS = {  # from, the later decade's first year, to
    "1905-1949": (1905, 1940, 1949),
    "1950-1969": (1950, 1960, 1969),
    "1970-1989": (1970, 1980, 1989),
    "1990-2013": (1990, 2000, 2013),
}
BINS = {f"years-{first}-{first + 1}": (first, first + 1) for first in range(1, 11, 2)}
CLASSES, NO_CLASS = 30, "BACKGROUND"
FRACTIONS, SEED = (0.7, 0.1, 0.2), 0
FEWEST = 3  # of a class: one for each split


class Image(NamedTuple):
    """One of a domain's, with the name that it gets there."""

    file: Path
    name: str
    label: str
    split: str | None = None  # where the data set names it


Plan = dict[str, list[Image]]  # by the domain's folder in the output
Places = dict[Path, Path]  # what to write, and of which file


def scan_yearbook(folder: Path) -> Plan:
    """All portraits, by task and period."""
    folders = (folder, folder / PORTRAITS)
    root = next((f for f in folders if all((f / gender).is_dir() for gender in GENDERS)), None)
    if root is None:
        raise TargetError(
            f"{folder} has no folders F and M: {describe(folder)}",
            hint=f"name the unpacked {PORTRAITS}, or the folder around it",
        )
    plan: Plan = {f"{task}/{period}": [] for task in ("gender", "decade") for period in PERIODS}
    for gender in GENDERS:
        for file in list_images(root / gender):
            period, decade = _date(file)
            name = f"{gender}-{file.name}"
            plan[f"gender/{period}"].append(Image(file, name, gender))
            plan[f"decade/{period}"].append(Image(file, name, decade))
    return plan


def _date(portrait: Path) -> tuple[str, str]:
    """The period, and which of its decades."""
    found = re.match(r"(\d{4})_", portrait.name)
    for period, (first, later, last) in PERIODS.items():
        if found and first <= int(found[1]) <= last:
            return period, "later" if int(found[1]) >= later else "earlier"
    raise TargetError(
        f"the name of {portrait} does not begin with a year from 1905 to 2013",
        hint="portraits are called YYYY_state_city_school_number.png; remove what is none",
    )


def scan_clear(folder: Path, classes: Sequence[str] | None = None) -> Plan:
    """All images of the classes, by two-year bin."""
    train_part, test_part = _find_parts(folder)
    chosen = _choose_classes(train_part, classes)
    parts = [(train_part, "train" if test_part else None), (test_part, "test")]
    return {
        name: [
            Image(file, f"{bucket:02}-{file.name}", label, split)
            for part, split in parts
            if part is not None
            for bucket in buckets
            for label in chosen
            for file in _list_labelled(part, bucket, label)
        ]
        for name, buckets in BINS.items()
    }


def _find_parts(folder: Path) -> tuple[Path, Path | None]:
    """Those of CLEAR: train, and test where it is there."""
    if (folder / "labeled_images").is_dir():
        return folder, None
    names = ("train_image_only", "train", "test")
    found = [folder / name for name in names if (folder / name / "labeled_images").is_dir()]
    if not found or found[0].name == "test":
        raise TargetError(
            f"{folder} has no labeled_images, and no train_image_only or train with them:"
            f" {describe(folder)}",
            hint="unpack clear10-train-image-only.zip or clear100-train-image-only.zip there,"
            " and clear10-test.zip or clear100-test.zip beside it",
        )
    return found[0], found[-1] if found[-1].name == "test" else None


def _choose_classes(part: Path, wanted: Sequence[str] | None) -> list[str]:
    folder = part / "labeled_images" / "1"
    if not folder.is_dir():
        raise TargetError(f"there is no bucket 1: {folder}", hint="unpack all of CLEAR, 1 to 10")
    known = sorted((f.name for f in folder.iterdir() if f.is_dir()), key=str.casefold)
    known = [name for name in known if not name.startswith(".")]
    if unknown := sorted(set(wanted or ()) - set(known)):
        raise TargetError(
            f"{folder} has no classes {', '.join(unknown)}",
            hint=f"--classes takes some of {', '.join(known)}",
        )
    default = [name for name in known if name != NO_CLASS][:CLASSES]
    return sorted(set(wanted)) if wanted else default


def _list_labelled(part: Path, bucket: int, label: str) -> list[Path]:
    """The images of a class in a bucket: those of its metadata, where there are any."""
    folder = part / "labeled_images" / str(bucket) / label
    files = list_images(folder) if folder.is_dir() else []
    if not files:
        raise TargetError(
            f"there are no images in {folder}",
            hint="unpack all of CLEAR, 1 to 10, or leave the class out with --classes",
        )
    names = _read_names(part, bucket, label)
    if names is None:
        return files
    if missing := sorted(names - {file.name for file in files}):
        raise TargetError(
            f"{folder} lacks {len(missing)} of the {len(names)} images that labeled_metadata names,"
            f" {missing[0]} first",
            hint="unpack the archive again, all of it",
        )
    return [file for file in files if file.name in names]


def _read_names(part: Path, bucket: int, label: str) -> set[str] | None:
    """Those that the part's metadata lists, where there is any."""
    index = part / "labeled_metadata.json"
    if not index.is_file():
        return None
    try:
        place = json.loads(index.read_text("utf-8"))[str(bucket)][label]
        records = json.loads((part / place).read_text("utf-8"))
        return {Path(record["IMG_PATH"]).name for record in records.values()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise TargetError(
            f"{index} does not list the class {label} of bucket {bucket}: {error!r}",
            hint="unpack the archive again, or remove that file to take all images that there are",
        ) from error


def list_images(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if is_image(file.name) and file.is_file())


def describe(folder: Path) -> str:
    if not folder.is_dir():
        return "it is no folder"
    names = sorted(file.name for file in folder.iterdir())
    return f"it holds {', '.join(names[:5]) or 'nothing'}{' …' if len(names) > 5 else ''}"


def write(plan: Plan, output: Path) -> None:
    """All domains or none. Raises TargetError where there are too few images, or other files."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise TargetError(f"{output} is there already", hint="name another, or remove it first")
    places = {domain: _split(domain, images) for domain, images in plan.items()}
    output.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as aside:
        made = Path(aside) / output.name
        for domain, files in places.items():
            link(files, made / domain, domain)
        if output.exists():
            output.rmdir()
        made.replace(output)
    lines = [line for domain, files in places.items() for line in _count(domain, files)]
    print_table(str(output), ("domain", "class", *SPLITS), lines)


def _split(domain: str, images: Sequence[Image]) -> Places:
    """Each image's place in the domain."""
    counts = Counter(image.label for image in images)
    few = [f"{n} of {label}" for label, n in sorted(counts.items()) if n < FEWEST]
    if few or len(counts) < 2:
        raise TargetError(
            f"{domain} has too few images: {', '.join(few) or f'of the classes {list(counts)}'}",
            hint=f"two classes or more need {FEWEST} each; look whether all of it was unpacked",
        )
    given = [UNGIVEN if i.split is None else SPLITS.index(i.split) for i in images]
    numbers = np.unique([image.label for image in images], return_inverse=True)[1]
    names = [f"{image.label}/{image.name}" for image in images]
    splits = assign_splits(np.array(given, np.int8), numbers, names, SEED, FRACTIONS)
    pairs = zip(images, splits.tolist(), strict=True)
    return {Path(SPLITS[split], image.label, image.name): image.file for image, split in pairs}


def link(places: Places, folder: Path, title: str) -> None:
    """Hard links, or copies where those cannot be."""
    with stage_bar(Output(as_json=False), title) as show:
        for number, (place, file) in enumerate(places.items(), 1):
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(file.resolve(), folder / place)
            except OSError:
                shutil.copyfile(file, folder / place)
            show("link or copy images", number / len(places), {})


def _count(domain: str, places: Places) -> Iterator[tuple[object, ...]]:
    counts = Counter(place.parts[:2] for place in places)
    for label in sorted({place.parts[1] for place in places}):
        yield domain, label, *(counts[split, label] for split in SPLITS)


def main(words: Sequence[str] | None = None) -> int:
    args = parse_arguments(words)
    try:
        if args.command == "yearbook":
            write(scan_yearbook(args.folder), args.output)
        else:
            write(scan_clear(args.folder, args.classes), args.output)
    except GraspError as error:
        return explain(error)
    return 0


def explain(error: GraspError) -> int:
    """On stderr, with what to do; returns the exit code."""
    hint = f"\n  {error.hint}" if error.hint else ""
    print(f"error: {error.message}{hint}", file=sys.stderr)
    return 1


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    importers = {name: commands.add_parser(name) for name in ("yearbook", "clear")}
    for importer in importers.values():
        importer.add_argument("folder", type=Path, help="the unpacked data set")
        importer.add_argument("output", type=Path, help="a folder that is not there yet")
    importers["clear"].add_argument("--classes", nargs="+", metavar="NAME")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
