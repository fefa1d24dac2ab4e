"""The same digits in every layout are the same target."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grasp_core.data import Limits, TargetData
from grasp_core.errors import BrokenExamples, TargetError
from grasp_core.kinds.image.formats import open_images
from tests.core.data_fixtures import (
    CLASSES,
    PREPROCESSING,
    Picture,
    contents_of,
    expected_contents,
    hub_table,
    pictures,
    png,
    write_folder,
    write_npz,
    write_parquet,
    write_shards,
    write_tar,
    write_tar_members,
    write_zip,
)

Write = Callable[[Path, list[Picture]], Path]


def write_prefixed_npz(path: Path, found: list[Picture]) -> Path:
    """As MedMNIST does: train_images, train_labels (n, 1), …"""
    arrays: dict[str, Any] = {"classes": np.array(CLASSES)}
    for split in {str(picture.split) for picture in found}:
        rows = [picture for picture in found if picture.split == split]
        labels = [[CLASSES.index(row.label)] for row in rows]
        arrays[f"{split}_images"] = np.stack([row.pixels for row in rows])
        arrays[f"{split}_labels"] = np.array(labels, np.uint8)
    np.savez(path, **arrays)
    return path


LAYOUTS: dict[str, Write] = {
    "folder": lambda tmp, found: write_folder(tmp / "d", found),
    "wrapped folder": lambda tmp, found: write_folder(tmp / "d", found, "digits/v1"),
    "zip": lambda tmp, found: write_zip(tmp / "d.zip", found),
    "wrapped zip": lambda tmp, found: write_zip(tmp / "d.zip", found, "digits/"),
    "nameless zip": lambda tmp, found: write_zip(tmp / "4f2a", found),
    "tar": lambda tmp, found: write_tar(tmp / "d.tar", found, wrapping="./"),
    "tar.gz": lambda tmp, found: write_tar(tmp / "d.tgz", found, "gz"),
    "tar.bz2": lambda tmp, found: write_tar(tmp / "d.tar.bz2", found, "bz2"),
    "tar.xz": lambda tmp, found: write_tar(tmp / "d.tar.xz", found, "xz", "digits/"),
    "shards": lambda tmp, found: write_shards(tmp / "d", found),
    "shards with json": lambda tmp, found: write_shards(tmp / "d", found, "json"),
    "shards with names": lambda tmp, found: write_shards(tmp / "d", found, "name"),
    "parquet": lambda tmp, found: write_parquet(tmp / "d", found),
    "plain parquet": lambda tmp, found: write_parquet(tmp / "d", found, "plain"),
    "npz": lambda tmp, found: write_npz(tmp / "d.npz", found),
    "npz by split": lambda tmp, found: write_prefixed_npz(tmp / "d.npz", found),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_target(layout: str, tmp_path: Path) -> None:
    found = pictures()
    target = open_images(
        LAYOUTS[layout](tmp_path, found), PREPROCESSING, cache_dir=tmp_path / "cache"
    )
    assert target.classes == CLASSES
    assert contents_of(target) == expected_contents(found)
    assert target.counts() == {
        "train": dict.fromkeys(CLASSES, 4),
        "val": dict.fromkeys(CLASSES, 3),
        "test": dict.fromkeys(CLASSES, 3),
    }
    assert target.broken == ()


@pytest.fixture
def open_at(tmp_path: Path) -> Callable[..., TargetData]:
    def open_(path: Path, **options: Any) -> TargetData:
        return open_images(path, PREPROCESSING, cache_dir=tmp_path / "cache", **options)

    return open_


def test_split_folders_by_their_other_names(tmp_path: Path, open_at: Any) -> None:
    found = pictures(splits=("Train", "validation", "test"))
    counts = open_at(write_folder(tmp_path / "d", found)).counts()
    assert [sum(counts[split].values()) for split in ("train", "val", "test")] == [12, 9, 9]


def test_a_folder_keeps_what_is_no_image_out(tmp_path: Path, open_at: Any) -> None:
    root = write_folder(tmp_path / "d", pictures(splits=(None,)))
    before = open_at(root)
    for name in ("one/notes.txt", "one/.hidden.png", ".git/x/a.png", "__MACOSX/one/._1.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"nothing to see")
    after = open_at(root)
    assert after.fingerprint == before.fingerprint
    assert after.counts() == before.counts()


def test_an_unreadable_file_is_broken(tmp_path: Path, open_at: Any, monkeypatch: Any) -> None:
    root = write_folder(tmp_path / "d", pictures(splits=(None,)))
    monkeypatch.setattr(Path, "read_bytes", _permission_denied_for("000.png", Path.read_bytes))
    target = open_at(root, max_broken=0.1)
    assert [image.name for image in target.broken] == [f"{name}/000.png" for name in CLASSES]
    assert "denied" in target.broken[0].reason


def _permission_denied_for(name: str, read: Callable[[Path], bytes]) -> Callable[[Path], bytes]:
    def read_bytes(path: Path) -> bytes:
        if path.name == name:
            raise PermissionError(13, "permission denied")
        return read(path)

    return read_bytes


@pytest.mark.parametrize("splits", [(None,), ("train",)])
def test_an_empty_class_folder_is_an_error(tmp_path: Path, open_at: Any, splits: Any) -> None:
    root = write_folder(tmp_path / "d", pictures(splits=splits), "wrapping")
    next((root / "wrapping").rglob("one")).with_name("three").mkdir()
    with pytest.raises(TargetError, match=r"class folder .*three holds no examples"):
        open_at(root)


def test_images_outside_of_the_layout_are_an_error(tmp_path: Path, open_at: Any) -> None:
    image = png(pictures(1)[0].pixels)
    flat = write_folder(tmp_path / "flat", pictures(splits=(None,)))
    (flat / "stray.png").write_bytes(image)
    with pytest.raises(TargetError, match=r"stray.png lies outside of the class folders"):
        open_at(flat)
    split = write_folder(tmp_path / "split", pictures())
    (split / "extra").mkdir()
    (split / "extra" / "stray.png").write_bytes(image)
    with pytest.raises(TargetError, match=r"extra/stray.png lies outside of the split folders"):
        open_at(split)


@pytest.mark.parametrize("name", ["o\nne", "o\x1b[31mne", "o\x85ne", "o\u2028ne", "o\udcffne"])
def test_class_folders_with_control_characters_are_refused(
    tmp_path: Path, open_at: Any, name: str
) -> None:
    root = write_folder(tmp_path / "d", pictures(splits=(None,)))
    (root / "one").rename(root / name)

    with pytest.raises(TargetError, match=r"the class name 'o.*ne' holds the control character"):
        open_at(root)


@pytest.mark.parametrize("layout", ["npz", "parquet"])
def test_declared_class_names_with_control_characters_are_refused(
    tmp_path: Path, open_at: Any, layout: str
) -> None:
    rows = [picture.pixels for picture in pictures()]
    labels = [CLASSES.index(picture.label) for picture in pictures()]
    if layout == "npz":
        path = tmp_path / "d.npz"
        names = np.array([*CLASSES[:-1], "a\tb"])
        np.savez(path, images=np.stack(rows), labels=np.array(labels), classes=names)
    else:
        path = tmp_path / "d.parquet"
        words = ["a\tb" if label else "c" for label in labels]
        pq.write_table(pa.table({"image": [png(row) for row in rows], "label": words}), path)

    with pytest.raises(TargetError, match=r"the class name 'a\\tb' holds the control character"):
        open_at(path)


def test_links_out_of_the_folder_are_refused_unless_allowed(tmp_path: Path, open_at: Any) -> None:
    root = write_folder(tmp_path / "d", pictures(splits=(None,)))
    inner, outer = root / "one/000.png", tmp_path / "secret.png"
    (root / "one/linked.png").symlink_to(inner)
    assert open_at(root).counts()["train"]["one"] > 0
    outer.write_bytes(inner.read_bytes())
    (root / "one/leading-out.png").symlink_to(outer)
    with pytest.raises(TargetError, match=r"leading-out.png is a link out of the target's folder"):
        open_at(root)
    allowed = open_at(root, limits=Limits(follow_links=True))
    assert sum(counts["one"] for counts in allowed.counts().values()) == 12


def test_nothing_and_the_unknown_are_named(tmp_path: Path, open_at: Any) -> None:
    with pytest.raises(TargetError, match="there is nothing at"):
        open_at(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TargetError, match="is an empty folder"):
        open_at(tmp_path / "empty")
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.csv").write_text("1,2")
    with pytest.raises(TargetError, match=r"a folder of 1 x \.csv") as caught:
        open_at(folder)
    assert caught.value.hint is not None
    for layout in ("class/image.png", ".zip", "WebDataset", ".parquet", ".npz"):
        assert layout in caught.value.hint
    (tmp_path / "a.bin").write_bytes(b"12345")
    with pytest.raises(TargetError, match="a file of 5 bytes in no known format"):
        open_at(tmp_path / "a.bin")


# WebDataset


def test_a_single_shard_is_split_whatever_its_name(tmp_path: Path, open_at: Any) -> None:
    root = write_shards(tmp_path / "d", pictures(splits=("test",)), "name")
    target = open_at(root / "test-000.tar")
    assert sum(target.counts()["train"].values()) > sum(target.counts()["test"].values()) > 0


def test_class_names_beside_a_shard_are_part_of_its_fingerprint(
    tmp_path: Path, open_at: Any
) -> None:
    root = write_shards(tmp_path / "d", pictures(splits=(None,)))
    before = open_at(root / "all-000.tar")
    (root / "classnames.txt").write_text("a\nb\nc\n")
    after = open_at(root / "all-000.tar")
    assert (before.classes, after.classes) == (CLASSES, ("a", "b", "c"))
    assert before.fingerprint != after.fingerprint


def test_numbers_without_names_are_classes_in_numeric_order(tmp_path: Path, open_at: Any) -> None:
    image = png(pictures(1)[0].pixels)
    members = [
        member
        for i in range(9)
        for member in ((f"{i}.png", image), (f"{i}.cls", b"%d" % (2, 10, 1)[i % 3]))
    ]
    target = open_at(write_tar_members(tmp_path / "d.tar", members))
    assert target.classes == ("1", "2", "10")


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (("2.txt", b"cat"), "2 in d.tar has no label"),
        (("2.json", b"[1]"), "unreadable label: not an object"),
        (("2.json", b'{"width": 3, "label": true}'), "none of the fields class_name, class, label"),
        (("2.json", b"{"), "unreadable label"),
        (("2.cls", b"\xff\xfe"), "unreadable label"),
        (("2.cls", b"a" * 2**21), "has an unreadable label"),
    ],
)
def test_shards_with_bad_labels(
    tmp_path: Path, open_at: Any, label: tuple[str, bytes], message: str
) -> None:
    image = png(pictures(1)[0].pixels)
    members = [("1.png", image), ("1.cls", b"cat"), ("2.png", image), label]
    with pytest.raises(TargetError, match=message):
        open_at(write_tar_members(tmp_path / "d.tar", members))


def test_json_prefers_the_name_and_loose_labels_are_ignored(tmp_path: Path, open_at: Any) -> None:
    image = png(pictures(1)[0].pixels)
    members = [("loose.cls", b"nobody"), (".hidden.png", b"")]
    for i in range(6):
        label = {"label": i % 2, "class_name": ("cat", "dog")[i % 2]}
        members += [(f"a.b/{i}.left.png", image), (f"a.b/{i}.json", json.dumps(label).encode())]
    target = open_at(write_tar_members(tmp_path / "d.tar", members))
    assert target.classes == ("cat", "dog")


# Parquet


def test_a_single_parquet_file(tmp_path: Path, open_at: Any) -> None:
    found = pictures(splits=(None,))
    pq.write_table(hub_table(found), tmp_path / "test-0.parquet")
    counts = open_at(tmp_path / "test-0.parquet").counts()
    assert {split: counts[split]["one"] for split in counts} == {"train": 5, "val": 3, "test": 2}


def test_parquet_in_split_folders(tmp_path: Path, open_at: Any) -> None:
    found = pictures()
    for split in ("train", "val", "test"):
        (tmp_path / "d" / split).mkdir(parents=True)
        rows = [picture for picture in found if picture.split == split]
        pq.write_table(hub_table(rows), tmp_path / "d" / split / "0000.parquet")
    assert contents_of(open_at(tmp_path / "d")) == expected_contents(found)


def test_parquet_without_usable_columns(tmp_path: Path, open_at: Any) -> None:
    pq.write_table(pa.table({"image": [b""], "caption": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(TargetError, match="columns image, caption") as caught:
        open_at(tmp_path / "a.parquet")
    assert caught.value.hint == "one must be called label or labels or fine_label"


def test_parquet_never_follows_a_stored_path(tmp_path: Path, open_at: Any) -> None:
    outside = tmp_path / "outside.png"
    outside.write_bytes(png(pictures(1)[0].pixels))
    rows = [{"bytes": None, "path": str(outside)}]
    pq.write_table(pa.table({"image": rows, "label": [0]}), tmp_path / "a.parquet")
    with pytest.raises(BrokenExamples, match="no bytes are stored"):
        open_at(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("label", "message"), [(None, "has the label None"), (-1, "the label -1 is none of the 3")]
)
def test_parquet_without_labels(
    tmp_path: Path, open_at: Any, label: int | None, message: str
) -> None:
    table = hub_table(pictures(1, (None,)))
    labels = pa.array([label] * 3, pa.int64())
    pq.write_table(table.set_column(1, "label", labels), tmp_path / "a.parquet")
    with pytest.raises(TargetError, match=message):
        open_at(tmp_path / "a.parquet")


def test_damaged_parquet(tmp_path: Path, open_at: Any) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(hub_table(pictures(100, (None,))), file, compression="gzip")
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(TargetError, match="no sound Parquet file"):
        open_at(file)
    middle = len(whole) // 4
    file.write_bytes(whole[:middle] + bytes(4000) + whole[middle + 4000 :])
    with pytest.raises(TargetError, match="no sound Parquet file"):
        open_at(file)


def test_parquet_files_must_agree_on_the_classes(tmp_path: Path, open_at: Any) -> None:
    root = write_parquet(tmp_path / "d", pictures())
    (root / "data/val-00000-of-00001.parquet").unlink()
    rows = [picture for picture in pictures() if picture.split == "val"]
    bare = hub_table(rows).replace_schema_metadata({})
    pq.write_table(bare, root / "data/val.parquet")
    with pytest.raises(TargetError, match="declare different class names"):
        open_at(root)


# npz


def test_npz_with_colours_strings_and_numbered_splits(tmp_path: Path, open_at: Any) -> None:
    found = pictures()
    path = write_npz(
        tmp_path / "d.npz",
        found,
        images=np.stack([np.repeat(p.pixels[..., None], 3, axis=2) for p in found]),
        labels=np.array([p.label.encode() for p in found]),
        split=np.array([("train", "val", "test").index(str(p.split)) for p in found]),
        classes=None,
    )
    target = open_at(path)
    assert target.classes == CLASSES
    assert contents_of(target) == expected_contents(found)


def test_npz_with_one_channel_is_read_in_chunks(
    tmp_path: Path, open_at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grasp_core.kinds.image.formats.npz.CHUNK_BYTES", 3 * 64 + 1)
    found = pictures()
    images = np.stack([picture.pixels[..., None] for picture in found])
    target = open_at(write_npz(tmp_path / "d.npz", found, images=images))
    assert contents_of(target) == expected_contents(found)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.array(["one", None] * 15, object)}, "labels holds pickled Python objects"),
        ({"images": np.zeros((30, 8, 8), np.float32)}, "and the type float32"),
        ({"images": np.zeros((30, 8, 8, 4), np.uint8)}, r"the shape \(30, 8, 8, 4\)"),
        ({"images": np.zeros((30, 0, 8), np.uint8)}, r"the shape \(30, 0, 8\)"),
        ({"images": np.asfortranarray(np.zeros((30, 8, 8), np.uint8))}, "Fortran order"),
        ({"labels": np.zeros(29, int)}, "labels has 29 entries for 30 images"),
        ({"labels": np.zeros((30, 2), int)}, r"labels has the shape \(30, 2\)"),
        ({"labels": np.zeros(30)}, "labels has .* the type float64"),
        ({"labels": None}, "there is no labels among classes, images, split"),
        ({"labels": np.full(30, 3)}, "the label 3 is none of the 3 declared classes"),
        ({"split": np.full(30, 3)}, "the split 3 is none of"),
        ({"split": np.full(30, "later")}, "the split 'later' is none of"),
        ({"classes": np.array(["a", "b", "a"])}, "declares a class name twice"),
        ({"classes": np.array(list("abcd"))}, "no example can be used of the classes: d"),
    ],
)
def test_npz_that_makes_no_sense(
    tmp_path: Path, open_at: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(TargetError, match=message):
        open_at(write_npz(tmp_path / "d.npz", pictures(), **changes))


@pytest.mark.parametrize(
    "names", [("x", "y"), ("data", "labels"), ("x_train", "y_train", "x_test", "y_test")]
)
def test_arrays_of_other_names_are_listed_with_what_is_expected(
    tmp_path: Path, open_at: Any, names: tuple[str, ...]
) -> None:
    path = tmp_path / "other.npz"
    arrays: dict[str, Any] = {name: np.zeros(3, np.uint8) for name in names}
    np.savez(path, **arrays)

    with pytest.raises(TargetError, match="and no images") as refusal:
        open_at(path)

    assert all(name in refusal.value.message for name in names)
    assert "images (n, h, w[, 1|3]) uint8, labels (n,)" in str(refusal.value.hint)


@pytest.mark.parametrize(
    "names", [("training", "valid", "testing"), ("training", "testing"), ("train", "eval")]
)
def test_folders_that_mean_splits_are_no_classes(
    tmp_path: Path, open_at: Any, names: tuple[str, ...]
) -> None:
    for name in names:
        for label in ("cat", "dog"):
            (tmp_path / name / label).mkdir(parents=True)
            (tmp_path / name / label / "1.png").write_bytes(png(pictures()[0].pixels))

    with pytest.raises(TargetError, match="look like splits, and are not called so") as refusal:
        open_at(tmp_path)

    assert "train, val (or valid, validation, dev) and test" in str(refusal.value.hint)


def test_an_archive_without_images_says_what_it_holds(tmp_path: Path, open_at: Any) -> None:
    path = tmp_path / "texts.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("cat/1.txt", "no picture")
        archive.writestr("cat/notes", "nor this")

    with pytest.raises(TargetError, match=r"1 x \.txt, 1 x no suffix, and no images") as refusal:
        open_at(path)

    assert "class/image.png" in str(refusal.value.hint)
