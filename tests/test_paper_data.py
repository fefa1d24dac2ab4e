"""The paper's data sets, read from small folders of their public layouts."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
from PIL import Image
from torch import nn

from bench import paper_data, paper_tables
from bench.accuracy import ROWS
from bench.paper_data import PERIODS, PORTRAITS, main
from bench.paper_tables import Settings, make_files, read_domains
from grasp_core import Checkpoint, ConfigError, ModelSpec, TargetError, open_task

STEPS = {"steps": 2, "epochs": None}
YEARS = (1905, 1949, 1950, 1969, 1970, 1989, 1990, 2013)


def write_image(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(shade).integers(0, 256, (8, 8), np.uint8)
    Image.fromarray(pixels).save(path)


def write_yearbook(folder: Path, each: int = 10) -> Path:
    for gender in "FM":
        for year in YEARS:
            for number in range(each):
                name = f"{year}_Ohio_Akron_Central_{number}.png"
                write_image(folder / gender / name, year + number)
    return folder


def write_clear(folder: Path, classes: tuple[str, ...], each: int = 5, first: int = 1) -> Path:
    for bucket in range(first, 11):
        for label in classes:
            for number in range(each):
                write_image(folder / f"labeled_images/{bucket}/{label}/{number}.jpg", bucket)
    return folder


def write_metadata(part: Path, names: dict[tuple[int, str], list[str]]) -> None:
    index: dict[str, dict[str, str]] = {}
    for (bucket, label), files in names.items():
        place = f"labeled_metadata/{bucket}/{label}.json"
        (part / place).parent.mkdir(parents=True, exist_ok=True)
        folder = f"labeled_images/{bucket}/{label}"
        records = {name: {"IMG_PATH": f"{folder}/{name}"} for name in files}
        (part / place).write_text(json.dumps(records))
        index.setdefault(str(bucket), {})[label] = place
    (part / "labeled_metadata.json").write_text(json.dumps(index))


def count(domain: Path) -> Counter[tuple[str, ...]]:
    """Images by split and class."""
    files = (file for file in domain.rglob("*") if file.is_file())
    return Counter(file.relative_to(domain).parts[:2] for file in files)


def test_yearbook_becomes_four_periods_of_two_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_yearbook(tmp_path / "in" / PORTRAITS)
    output = tmp_path / "out"
    assert main(["yearbook", str(tmp_path / "in"), str(output)]) == 0
    for task, classes in (("gender", ("F", "M")), ("decade", ("earlier", "later"))):
        domains = read_domains(output / task)
        assert [domain.name for domain in domains] == sorted(PERIODS)
        sizes = {"train": 14, "val": 2, "test": 4}
        expected = {(split, label): n for split, n in sizes.items() for label in classes}
        assert all(count(domain) == expected for domain in domains)
    years = {f.name[2:6] for f in (output / "decade/1950-1969").rglob("later/*.png")}
    assert years == {"1969"}
    lines = capsys.readouterr().out.splitlines()
    assert ["gender/1905-1949", "F", "14", "2", "4"] in [line.split() for line in lines]


def test_domains_are_targets_that_the_core_reads(tmp_path: Path) -> None:
    main(["yearbook", str(write_yearbook(tmp_path / "in")), str(tmp_path / "out")])
    domain = tmp_path / "out/decade/1990-2013"
    assert (domain.stat().st_mode & 0o077) == (tmp_path / "in/F").stat().st_mode & 0o077
    spec = ModelSpec(architecture="test_efficientnet", classes=("earlier", "later"))
    task = open_task(domain, spec, cache_dir=tmp_path)
    assert task.training_steps(4) == 7


def test_splits_are_drawn_the_same_every_time(tmp_path: Path) -> None:
    folder = write_yearbook(tmp_path / "in")
    for name in ("one", "other"):
        main(["yearbook", str(folder), str(tmp_path / name)])
    one, other = (
        sorted(file.relative_to(tmp_path / name) for file in (tmp_path / name).rglob("*.png"))
        for name in ("one", "other")
    )
    assert one == other
    assert len(one) == 2 * 2 * len(YEARS) * 10


def test_clear_becomes_bins_of_two_years(tmp_path: Path) -> None:
    write_clear(tmp_path, ("bus", "camera", "BACKGROUND"), each=4, first=0)
    assert main(["clear", str(tmp_path), str(tmp_path / "out")]) == 0
    domains = read_domains(tmp_path / "out")
    names = ["years-1-2", "years-3-4", "years-5-6", "years-7-8", "years-9-10"]
    assert [domain.name for domain in domains] == names
    sizes = {"train": 5, "val": 1, "test": 2}  # of two buckets with four each
    expected = {(split, label): n for split, n in sizes.items() for label in ("bus", "camera")}
    assert all(count(domain) == expected for domain in domains)
    buckets = {file.name.split("-")[0] for file in domains[-1].rglob("*.jpg")}
    assert buckets == {"09", "10"}


def test_clear_keeps_the_test_part_as_the_test_split(tmp_path: Path) -> None:
    write_clear(tmp_path / "in/train_image_only", ("bus", "camera"), each=8)
    write_clear(tmp_path / "in/test", ("bus", "camera"), each=3)
    assert main(["clear", str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    sizes = {"train": 14, "val": 2, "test": 6}
    expected = {(split, label): n for split, n in sizes.items() for label in ("bus", "camera")}
    assert all(count(domain) == expected for domain in read_domains(tmp_path / "out"))


def test_thirty_classes_by_default_and_others_by_name(tmp_path: Path) -> None:
    names = tuple(f"class{number:02}" for number in range(31))
    folder = write_clear(tmp_path / "in", ("BACKGROUND", *names), each=2)
    plan = paper_data.scan_clear(folder)
    assert {image.label for image in plan["years-1-2"]} == set(names[:30])
    plan = paper_data.scan_clear(folder, ["class30", "BACKGROUND"])
    assert {image.label for image in plan["years-9-10"]} == {"class30", "BACKGROUND"}
    with pytest.raises(TargetError, match="no classes bicycle") as error:
        paper_data.scan_clear(folder, ["bicycle"])
    assert "class00, class01" in str(error.value.hint)


def test_metadata_says_which_images_count(tmp_path: Path) -> None:
    folder = write_clear(tmp_path, ("bus", "camera"))
    cells = [(bucket, label) for bucket in range(1, 11) for label in ("bus", "camera")]
    names = {cell: [f"{number}.jpg" for number in range(4)] for cell in cells}
    write_metadata(folder, names)
    assert all(len(images) == 16 for images in paper_data.scan_clear(folder).values())
    (folder / "labeled_images/3/bus/2.jpg").unlink()
    with pytest.raises(TargetError, match=r"3/bus lacks 1 of the 4 images .* 2\.jpg first"):
        paper_data.scan_clear(folder)
    (folder / "labeled_metadata/1/bus.json").write_text("[]")
    with pytest.raises(TargetError, match="does not list the class bus of bucket 1"):
        paper_data.scan_clear(folder)


def spoil_genders(folder: Path) -> str:
    shutil.rmtree(folder / "M")
    return "no folders F and M: it holds F"


def spoil_year(folder: Path) -> str:
    write_image(folder / "F" / "portrait.png")
    return "does not begin with a year"


def spoil_decade(folder: Path) -> str:
    for file in folder.glob("*/1969*"):
        file.unlink()
    return "decade/1950-1969 has too few images: of the classes ['earlier']"


def spoil_all(folder: Path) -> str:
    shutil.rmtree(folder)
    return "it is no folder"


@pytest.mark.parametrize("spoil", [spoil_genders, spoil_year, spoil_decade, spoil_all])
def test_what_is_no_yearbook_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], str]
) -> None:
    folder = write_yearbook(tmp_path / "in")
    message = spoil(folder)
    assert main(["yearbook", str(folder), str(tmp_path / "out")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert message in lines[0]
    assert lines[1].strip()  # what to do
    assert [path.name for path in tmp_path.iterdir()] in (["in"], [])


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ("", "has no labeled_images"),
        ("labeled_images", "there is no bucket 1"),
        ("labeled_images/7", "there are no images in"),
        ("labeled_images/4/camera", "there are no images in"),
    ],
)
def test_what_is_not_all_of_clear_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], removed: str, message: str
) -> None:
    folder = write_clear(tmp_path / "in", ("bus", "camera"), each=2)
    shutil.rmtree(folder / removed)
    (folder / removed).mkdir(parents=True)
    (folder / removed / "readme.txt").touch()
    assert main(["clear", str(folder), str(tmp_path / "out")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert message in lines[0]
    assert "unpack" in lines[1]
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_too_few_images_of_a_class_are_refused(tmp_path: Path) -> None:
    folder = write_clear(tmp_path / "in", ("bus", "camera"), each=1)
    with pytest.raises(TargetError, match="years-1-2 has too few images: 2 of bus, 2 of camera"):
        paper_data.write(paper_data.scan_clear(folder), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_other_files_are_never_written_over(tmp_path: Path) -> None:
    folder = write_yearbook(tmp_path / "in")
    (tmp_path / "out").mkdir()
    assert main(["yearbook", str(folder), str(tmp_path / "out")]) == 0  # as it was empty
    assert main(["yearbook", str(folder), str(tmp_path / "out")]) == 1


def test_images_are_copied_where_links_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError("another disk")

    monkeypatch.setattr("bench.paper_data.os.link", refuse)
    folder = write_yearbook(tmp_path / "in")
    assert main(["yearbook", str(folder), str(tmp_path / "out")]) == 0
    assert count(tmp_path / "out/gender/1905-1949")["train", "F"] == 14


def test_what_is_no_set_of_domains_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="holds no two domains"):
        read_domains(tmp_path)
    main(["yearbook", str(write_yearbook(tmp_path / "in")), str(tmp_path / "out")])
    shutil.rmtree(tmp_path / "out/gender/1950-1969/train/M")
    with pytest.raises(TargetError, match="other classes"):
        read_domains(tmp_path / "out/gender")


def test_files_of_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many labels of all classes; sources of the other domains, from ImageNet's weights."""
    main(["yearbook", str(write_yearbook(tmp_path / "in")), str(tmp_path / "out")])
    domains = read_domains(tmp_path / "out/gender")
    create: Callable[..., nn.Module] = timm.create_model
    asked = []

    def download(name: str, *, pretrained: bool = False, **options: int) -> nn.Module:
        asked.append(pretrained)
        return create(name, **options)

    monkeypatch.setattr("timm.create_model", download)
    settings = Settings("test_efficientnet", 6, image_size=32, epochs=1, pretrained=True)
    (tmp_path / "work").mkdir()
    files = make_files(domains, 1, tmp_path / "work", settings)
    assert any(asked)
    names = {"1905-1949", "1970-1989", "1990-2013"}
    assert {source.name for source in files.sources} == names
    sizes = {"train": 3, "val": 2, "test": 4}
    expected = {(split, label): n for split, n in sizes.items() for label in "FM"}
    assert count(tmp_path / "work/target") == expected
    ancestor = Checkpoint(files.ancestor)
    assert all(set(Checkpoint(source)) == set(ancestor) for source in files.sources)
    with pytest.raises(ConfigError, match="too few"):
        make_files(domains, 1, tmp_path / "work", Settings("test_efficientnet", 1))


def test_tables_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paper_tables, "REFINE", STEPS)
    main(["yearbook", str(write_yearbook(tmp_path / "in")), str(tmp_path / "out")])
    capsys.readouterr()
    words = [str(tmp_path / "out"), "--architecture", "test_efficientnet", "--cells", "1"]
    words += ["--image-size", "32", "--epochs", "1", "--labels", "12"]
    words += ["--work", str(tmp_path / "work")]
    assert paper_tables.main(words) == 0
    printed = capsys.readouterr().out
    for name in ("gender", "decade"):
        assert f"{name}, target 1905-1949, 1 cells" in printed
    assert all(printed.count(f"\n{row.name}  ") == 2 for row in ROWS)
    monkeypatch.setattr(paper_tables, "make_files", lambda *_, **__: pytest.fail("made again"))
    assert paper_tables.main(words) == 0  # all of it is known
    assert capsys.readouterr().out == printed


def test_cells_have_every_domain_as_the_target_in_turn(tmp_path: Path) -> None:
    main(["yearbook", str(write_yearbook(tmp_path / "in")), str(tmp_path / "out")])
    domains, settings = read_domains(tmp_path / "out/gender"), Settings("test_efficientnet")
    cells = paper_tables.list_cells("gender", domains, settings, None)
    assert [cell.definition["target"] for cell in cells] == sorted(PERIODS)
    assert len(paper_tables.list_cells("gender", domains, settings, 6)) == 6
    write_image(domains[0] / "train/F/another.png")
    (changed,) = paper_tables.list_cells("gender", domains, settings, 1)
    assert changed.definition["data"] != cells[0].definition["data"]


def test_unknown_architectures_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["clear", str(write_clear(tmp_path, ("bus", "camera"))), str(tmp_path / "out")])
    assert paper_tables.main([str(tmp_path / "out"), "--architecture", "resnet_of_mine"]) == 1
    assert "resnet_of_mine" in capsys.readouterr().err
