"""A kind from another package, as docs/extend.md shows it, through the whole service."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine

from grasp_core import (
    BrokenExamples,
    Checkpoint,
    CheckpointInfo,
    ModelSpec,
    TargetError,
    build_model,
    export_folder,
    load_weights,
    open_task,
    write_checkpoint,
)
from grasp_core.data import Limits
from grasp_core.kinds import KINDS, Implementation, find_kind
from grasp_core.operations import ValidateTarget
from tests.serving import PATIENCE_S, serving

PACKAGE = Path(__file__).parents[2] / "examples" / "tabular"
UV = Path(sys.executable).with_name("uv")
ARCHITECTURE, CLASSES = "mlp-13-16-8", ("barolo", "grignolino", "barbera")
OVERRIDES = {"log": True}
MERGE = {
    "alignment_batches": 4,
    "refine": {"epochs": 4, "lr": 1e-2, "augmentation": {"noise": 0.01}},
    "gate": {"max_drop": 1.0},
}
GOOD = 0.6  # guessing gets 0.4
Json = dict[str, Any]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the package as pip installs it, on the path of this process too."""
    folder = tmp_path_factory.mktemp("site-packages")
    options = ("--quiet", "--offline", "--no-deps", "--no-build-isolation")
    place: tuple[str | Path, ...] = ("--python", sys.executable, "--target", folder)
    subprocess.run([UV, "pip", "install", *options, *place, PACKAGE], check=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        KINDS.forget()
        yield folder
    KINDS.forget()
    for name in [name for name in sys.modules if name.partition(".")[0] == "grasp_tabular"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def spec(installed: Path) -> ModelSpec:
    return ModelSpec(
        kind="tabular", architecture=ARCHITECTURE, classes=CLASSES, preprocessing=OVERRIDES
    )


def write_wines(path: Path, shift: float = 0.0) -> Path:
    """Real wines, measured as another laboratory would: all numbers are off by a factor."""
    wines = load_wine()
    columns = ",".join(name.replace("/", " ") for name in wines.feature_names)
    rows = [
        ",".join([CLASSES[label], *(f"{number * (1 + shift):.4f}" for number in numbers)])
        for numbers, label in zip(wines.data, wines.target, strict=True)
    ]
    path.write_text("\n".join([f"label,{columns}", *rows]) + "\n")
    return path


def write_source(folder: Path, spec: ModelSpec, number: int) -> Path:
    data = write_wines(folder / f"wines-{number}.csv", shift=0.1 * number)
    task = open_task(data, spec, cache_dir=folder / "cache")
    torch.manual_seed(0)  # one ancestor
    model = find_kind("tabular").load().create(spec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(20):
        for batch in task.training_batches(16, 100 * number + epoch, {}):
            optimizer.zero_grad()
            task.loss(model, batch).backward()
            optimizer.step()
    path = folder / f"site-{number}.safetensors"
    about = CheckpointInfo(kind="tabular", architecture=ARCHITECTURE, classes=CLASSES)
    write_checkpoint(path, model.state_dict(), about)
    return path


@dataclass
class Story:
    """What a client saw."""

    client: httpx.Client
    target: Path
    sources: list[Path]
    jobs: list[Json]


@pytest.fixture(scope="module")
def story(
    installed: Path, spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("wines")
    sources = [write_source(folder, spec, number) for number in (1, 2)]
    target = write_wines(folder / "wines.csv")
    path = os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH")]))
    with serving(folder / "home", PYTHONPATH=path) as (client, _):
        with target.open("rb") as file:
            about = {"name": "wines", "kind": "tabular"}
            answer = client.post("/targets", data=about, files={"file": file})
        assert answer.status_code == 202, answer.text
        answer = client.post("/models", json=model_fields("merged"))
        assert answer.status_code == 201, answer.text
        yield Story(client, target, sources, [offer(client, source) for source in sources])


def model_fields(name: str, **changes: Any) -> Json:
    given = {"name": name, "architecture": ARCHITECTURE, "target": "wines", "classes": CLASSES}
    return given | {"preprocessing": OVERRIDES, "merge": MERGE} | changes


def offer(client: httpx.Client, source: Path) -> Json:
    with source.open("rb") as file:
        answer = client.post("/sources", data={"model": "merged"}, files={"file": file})
    assert answer.status_code == 202, answer.text
    return finished(client, answer.json()["job"]["id"])


def finished(client: httpx.Client, job: str) -> Json:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found: Json = client.get(f"/jobs/{job}").json()
        if found["finished_at"] is not None:
            return found
        time.sleep(0.2)
    raise TimeoutError(f"{job} does not end")


def test_the_service_knows_the_kind_of_what_it_is_told(story: Story) -> None:
    target = story.client.get("/targets/wines").json()
    samples = story.client.get("/targets/wines/samples").json()["items"]

    assert (target["kind"], target["status"], target["images"]) == ("tabular", "ready", 178)
    assert set(target["classes"]) == set(CLASSES)
    assert sum(target["counts"]["train"].values()) == 120
    assert {sample["class"] for sample in samples} == set(CLASSES)
    assert all(sample.keys() == {"class", "split", "text"} for sample in samples)
    assert all(len(sample["text"].split(", ")) == 13 for sample in samples)
    model = story.client.get("/models/merged/info").json()
    assert (model["kind"], model["preprocessing"]) == ("tabular", OVERRIDES)
    assert model["merge"]["refine"]["augmentation"] == {"noise": 0.01}


def test_sources_are_folded_into_good_versions(story: Story) -> None:
    assert [(job["status"], job["version"]) for job in story.jobs] == [
        ("succeeded", 1),
        ("succeeded", 2),
    ]
    for version in story.client.get("/models/merged/versions").json()["items"]:
        report = story.client.get(version["links"]["report"]).json()
        assert report["spec"]["kind"] == "tabular"
        assert report["metrics"]["after"]["test"]["accuracy"] > GOOD
        assert version["sha256"] == report["sha256"]


def download(client: httpx.Client, path: Path, version: int) -> Path:
    path.write_bytes(client.get(f"/models/merged/versions/{version}").raise_for_status().content)
    return path


def test_a_download_says_what_it_is_and_is_as_good_as_was_said(
    story: Story, spec: ModelSpec, tmp_path: Path
) -> None:
    file = Checkpoint(download(story.client, tmp_path / "merged.safetensors", 2))

    info = file.info
    assert (info.kind, info.architecture, info.classes) == ("tabular", ARCHITECTURE, CLASSES)
    assert info.preprocessing is not None
    assert info.preprocessing.model_dump() == {"log": True, "columns": 13}
    model = build_model(spec)
    load_weights(model, file, torch.device("cpu"))
    task = open_task(story.target, spec, cache_dir=tmp_path / "cache")
    (batch,) = task.evaluation_batches("test", 1000)
    right = model.eval()(**batch.inputs).argmax(1) == batch.labels
    report = story.client.get("/models/merged/versions/2/report").json()
    assert float(right.double().mean()) == pytest.approx(
        report["metrics"]["after"]["test"]["accuracy"]
    )


def test_without_a_server_the_bytes_are_the_same(
    story: Story, installed: Path, tmp_path: Path
) -> None:
    words: list[str | Path] = ["merge", *story.sources, "--target", story.target]
    words += ["--kind", "tabular"]
    words += ["--architecture", ARCHITECTURE, "--preprocess", "log=true", "--output", "out"]
    words += ["--classes", ",".join(CLASSES), "--threads", "1", "--device", "cpu"]
    for setting in ("alignment_batches=4", "refine.epochs=4", "refine.lr=0.01"):
        words += ["--set", setting]
    words += ["--set", "refine.augmentation.noise=0.01", "--set", "gate.max_drop=1.0"]
    path = os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH")]))

    subprocess.run(
        [Path(sys.executable).with_name("grasp"), *words],
        env=os.environ | {"PYTHONPATH": path, "HOME": str(tmp_path)},
        cwd=tmp_path,
        check=True,
    )

    service = download(story.client, tmp_path / "service", 2)
    assert (tmp_path / "out").read_bytes() == service.read_bytes()


def test_what_other_kinds_have_is_refused_by_name(story: Story) -> None:
    def wrong(**changes: Any) -> dict[str, str]:
        answer = story.client.post("/models", json=model_fields("other", **changes))
        assert answer.status_code == 422, answer.text
        return {error["where"]: error["message"] for error in answer.json()["errors"]}

    words = "tabular has no such parameter; it is one of image"
    assert wrong(preprocessing={"image_size": 64}) == {"body.preprocessing.image_size": words}
    flip = {"refine": {"augmentation": {"flip": True}}}
    assert wrong(merge=flip) == {"body.merge.refine.augmentation.flip": words}
    unknown = story.client.post("/targets?name=x&kind=smell", content=b"x")
    assert "there are" in unknown.json()["errors"][0]["message"]
    assert "tabular" in unknown.json()["errors"][0]["message"]


def test_an_architecture_of_another_kind_is_none(story: Story) -> None:
    answer = story.client.post("/models", json=model_fields("resnet", architecture="resnet18"))
    job = finished(story.client, answer.json()["job"]["id"])

    assert job["status"] == "failed"
    assert job["error"]["code"] == "unknown_architecture"
    assert job["error"]["message"] == "there is no 'resnet18'"


def test_pages_show_rows(story: Story) -> None:
    for page in ("/", "/ui/targets", "/ui/models/merged", "/ui/models/merged/versions/2"):
        answer = story.client.get(page)
        assert answer.status_code == 200, answer.text
    shown = story.client.get("/ui/targets/wines").text
    assert "Rows" in shown
    assert "data:image" not in shown
    samples = story.client.get("/targets/wines/samples").json()["items"]
    assert f"<code>{samples[0]['text']}</code>" in shown


def test_going_back_gives_the_first_version_again(story: Story) -> None:
    answer = story.client.post("/models/merged/rollback", json={"version": 1})

    assert answer.status_code in (200, 201), answer.text
    versions = story.client.get("/models/merged/versions").json()["items"]
    assert [version["number"] for version in versions] == [3, 2, 1]
    assert versions[0]["sha256"] == versions[2]["sha256"]


def test_the_export_says_how_to_use_it(story: Story, tmp_path: Path) -> None:
    merged = download(story.client, tmp_path / "merged.safetensors", 2)

    folder = export_folder(merged, tmp_path / "folder")

    assert {file.name for file in folder.iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
    }
    card = (folder / "README.md").read_text()
    assert "A classifier of rows of 13 numbers" in card
    assert "timm" not in card


# The format


@pytest.fixture
def implementation(installed: Path) -> Implementation:
    return find_kind("tabular").load()


@pytest.fixture
def opened(implementation: Implementation, tmp_path: Path) -> Callable[..., Any]:
    limits = Limits(max_examples=1000, max_bytes=10**6, max_example_bytes=1000)
    return partial(
        implementation.open_target, cache_dir=tmp_path / "cache", limits=limits, progress=None
    )


def table(rows: int = 30, header: str = "a,label,b") -> str:
    return header + "\n" + "".join(f"{i}.5,{'xy'[i % 2]},{-i}\n" for i in range(rows))


def test_rows_are_read_as_they_stand(opened: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(table())

    target = opened(tmp_path / "t.csv")

    splits = [target.train, target.val, target.test]
    rows = np.concatenate([split.read(np.arange(len(split))) for split in splits])
    labels = np.concatenate([split.labels for split in splits])
    order = np.argsort(rows[:, 0])
    assert np.array_equal(rows[order], [[i + 0.5, -i] for i in range(30)])
    assert [target.classes[label] for label in labels[order]] == [*"xy"] * 15


def test_given_splits_are_kept(opened: Callable[..., Any], tmp_path: Path) -> None:
    names = ("train", "valid", "test")
    lines = [f"{i},{i % 2},{names[i % 3]}" for i in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["n,label,split", *lines]))

    target = opened(tmp_path / "t.csv")

    assert target.classes == ("0", "1")
    for split, rest in ((target.train, 0), (target.val, 1), (target.test, 2)):
        assert {int(n) % 3 for n in split.read(np.arange(len(split))).ravel()} == {rest}


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        ("", TargetError, "a file of 0 bytes in no known format"),
        ("a,b\n1,2\n", TargetError, "in no known format"),
        ("a,label\n", TargetError, "holds no examples"),
        ("a,label\n1\n", TargetError, "line 000000002 has no label"),
        ("a,label\n1,\n", TargetError, "line 000000002 has no label"),
        (table() + "nan,x,1\n", BrokenExamples, "line 000000032: a number is not finite"),
        (table() + "1,x,one\n", BrokenExamples, "could not convert string to float: 'one'"),
        (table() + "1,x,1,1\n", BrokenExamples, "4 cells, where the header has others"),
        (table() + "1,x," + "1" * 2000, TargetError, "longer than Limits.max_example_bytes = 1000"),
        (table(1001), TargetError, "over the limit max_examples = 1000"),
        (table() + "\n" * 10**6, TargetError, "over the limit max_bytes = 1000000"),
    ],
)
def test_tables_that_make_no_sense(
    opened: Callable[..., Any], tmp_path: Path, text: str, error: type[TargetError], told: str
) -> None:
    (tmp_path / "t.csv").write_text(text)

    with pytest.raises(error, match=told):
        opened(tmp_path / "t.csv")


def test_bytes_that_are_no_text_are_refused(opened: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(table().encode() + b"\xff,x,1\n")

    with pytest.raises(TargetError, match="no sound CSV"):
        opened(tmp_path / "t.csv")


def test_images_are_no_table(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "t.zip").write_bytes(b"PK\x03\x04")

    with pytest.raises(TargetError, match="in no known format") as caught:
        ValidateTarget({"target": tmp_path / "t.zip"}, tmp_path, kind="tabular").run(
            lambda *_: None
        )
    assert caught.value.hint is not None
    assert ".csv" in caught.value.hint


def test_noise_is_added_in_training_alone(spec: ModelSpec, tmp_path: Path) -> None:
    plain = ModelSpec(kind="tabular", architecture=ARCHITECTURE, classes=spec.classes)
    task = open_task(write_wines(tmp_path / "w.csv"), plain, cache_dir=tmp_path)

    def rows(noise: float) -> torch.Tensor:
        return next(iter(task.training_batches(1000, 0, {"noise": noise}))).inputs["rows"]

    assert torch.equal(rows(0.0), rows(0.0))
    assert not torch.equal(rows(0.0), rows(0.1))
    assert torch.equal(rows(0.1), rows(0.1))
    assert (rows(0.1) - rows(0.0)).std() == pytest.approx(0.1, rel=0.5)
