"""Real images (scikit-learn's digits) written in every layout that a target may come in."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from grasp_core.data import TargetData
from grasp_core.kinds.image.config import Preprocessing

SIDE = 8  # of the digits; resized to the same side they keep their pixels
PREPROCESSING = Preprocessing(image_size=SIDE, resize=SIDE)
CLASSES = ("one", "seven", "two")
DIGITS = {"one": 1, "seven": 7, "two": 2}


class Picture(NamedTuple):
    split: str | None
    label: str
    name: str
    pixels: NDArray[np.uint8]  # (8, 8)

    @property
    def path(self) -> str:
        return "/".join(filter(None, [self.split, self.label, self.name]))


def pictures(
    per_class: int = 10, splits: Sequence[str | None] = ("train", "val", "test")
) -> list[Picture]:
    """So many digits of each class, dealt to the splits in turn."""
    data = _digits()
    found = []
    for label, digit in DIGITS.items():
        images = (data.images[data.target == digit][:per_class] * 15).astype(np.uint8)
        for i, pixels in enumerate(images):
            found.append(Picture(splits[i % len(splits)], label, f"{i:03}.png", pixels))
    return found


@cache
def _digits() -> Any:
    return load_digits()


def png(pixels: NDArray[Any]) -> bytes:
    return encoded(Image.fromarray(pixels))


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def write_folder(root: Path, found: list[Picture], wrapping: str = "") -> Path:
    for picture in found:
        file = root / wrapping / picture.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(picture.pixels))
    return root


def write_zip(path: Path, found: list[Picture], wrapping: str = "") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for picture in found:
            archive.writestr(wrapping + picture.path, png(picture.pixels))
    return path


def write_tar(path: Path, found: list[Picture], compression: str = "", wrapping: str = "") -> Path:
    members = [(wrapping + picture.path, png(picture.pixels)) for picture in found]
    return write_tar_members(path, members, compression)


def write_tar_members(path: Path, members: list[tuple[str, bytes]], compression: str = "") -> Path:
    with tarfile.open(path, f"w:{compression}") as archive:  # type: ignore[call-overload]
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def write_shards(root: Path, found: list[Picture], label: str = "cls") -> Path:
    """One shard per split, in declared order of classes; `label`: cls, json or name."""
    root.mkdir(exist_ok=True)
    for split in dict.fromkeys(picture.split for picture in found):
        members = []
        for i, picture in enumerate(p for p in found if p.split == split):
            members.append((f"{i:06}.png", png(picture.pixels)))
            members.append(_label_member(f"{i:06}", picture, label))
        write_tar_members(root / f"{split or 'all'}-000.tar", members)
    if label != "name":
        (root / "classnames.txt").write_text("\n".join(CLASSES) + "\n")
    return root


def _label_member(key: str, picture: Picture, kind: str) -> tuple[str, bytes]:
    if kind == "name":
        return f"{key}.cls", picture.label.encode()
    index = CLASSES.index(picture.label)
    if kind == "cls":
        return f"{key}.cls", str(index).encode()
    return f"{key}.json", json.dumps({"label": index, "width": SIDE}).encode()


def write_parquet(root: Path, found: list[Picture], kind: str = "hub") -> Path:
    """One file per split in data/; `kind`: hub (structs and indices), or plain (bytes, names)."""
    (root / "data").mkdir(parents=True)
    for split in dict.fromkeys(picture.split for picture in found):
        rows = [picture for picture in found if picture.split == split]
        name = f"{split or 'all'}-00000-of-00001.parquet"
        pq.write_table(
            hub_table(rows) if kind == "hub" else plain_table(rows), root / "data" / name
        )
    return root


def hub_table(rows: list[Picture]) -> Any:
    table = pa.table(
        {
            "image": [{"bytes": png(row.pixels), "path": row.path} for row in rows],
            "label": [CLASSES.index(row.label) for row in rows],
        }
    )
    features = {"image": {"_type": "Image"}, "label": {"names": CLASSES, "_type": "ClassLabel"}}
    return table.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )


def plain_table(rows: list[Picture]) -> Any:
    images = [png(row.pixels) for row in rows]
    return pa.table({"img": images, "labels": [row.label for row in rows]})


def write_npz(path: Path, found: list[Picture], **changes: Any) -> Path:
    arrays = {
        "images": np.stack([picture.pixels for picture in found]),
        "labels": np.array([CLASSES.index(picture.label) for picture in found]),
        "classes": np.array(CLASSES),
    }
    if found[0].split is not None:
        arrays["split"] = np.array([picture.split for picture in found])
    merged = {name: array for name, array in (arrays | changes).items() if array is not None}
    np.savez_compressed(path, **merged)
    return path


def contents_of(target: TargetData) -> dict[tuple[str, str], list[bytes]]:
    """The pixels of every split and class, sorted: what a target holds, whatever its order."""
    found: dict[tuple[str, str], list[bytes]] = {}
    for split in (target.train, target.val, target.test):
        images = split.read(np.arange(len(split)))
        for label, image in zip(split.labels, images, strict=True):
            found.setdefault((split.name, target.classes[label]), []).append(image.tobytes())
    return {key: sorted(images) for key, images in found.items()}


def expected_contents(found: list[Picture]) -> dict[tuple[str, str], list[bytes]]:
    result: dict[tuple[str, str], list[bytes]] = {}
    for picture in found:
        rgb = np.repeat(picture.pixels[..., None], 3, axis=2)
        result.setdefault((str(picture.split), picture.label), []).append(rgb.tobytes())
    return {key: sorted(images) for key, images in result.items()}
