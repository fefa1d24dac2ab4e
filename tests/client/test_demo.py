"""`grasp demo` on a real service, with few digits and epochs; and what it is made of."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from grasp_cli.demo.command import SourceResult, _rendered, _summary, chart
from grasp_cli.demo.digits import DECADES, TODAY, Digits
from grasp_cli.demo.experiment import QUICK, SPEC, Experiment, Sizes
from grasp_cli.main import cli
from grasp_cli.session import console
from grasp_core.files import sha256_file
from tests.serving import serving


def invoke(*words: object) -> Result:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serving(tmp_path_factory.mktemp("service")) as (client, _):
        yield client


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def result(client: httpx.Client, folder: Path) -> dict[str, Any]:
    """What the demo says as JSON, on a server where somebody has used its name before."""
    taken = client.post("/targets", data={"name": "demo"}, files={"file": ("a.npz", b"nothing")})
    assert taken.status_code == 202
    result = invoke("demo", "--quick", "--files", folder, "--url", client.base_url, "--json")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_it_takes_a_name_that_is_free(result: dict[str, Any]) -> None:
    assert result["model"] == "demo-2"


def test_all_sources_were_offered_and_measured(
    client: httpx.Client, result: dict[str, Any]
) -> None:
    info = client.get("/models/demo-2/info").json()

    assert [source["source"] for source in result["sources"]] == list(DECADES)
    assert {source["status"] for source in result["sources"]} <= {"succeeded", "rejected"}
    assert (result["version"], result["merged"]) == (
        info["version"],
        info["metrics"]["after"]["test"]["accuracy"],
    )
    assert result["best_source"]["alone"] == max(source["alone"] for source in result["sources"])
    assert result["test_digits"] == 220 - 60 - 100


def test_what_the_target_alone_makes_of_the_best_source_is_told(
    client: httpx.Client, result: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    best = result["best_source"]
    experiment = Experiment(folder, tmp_path, 0, QUICK)

    rate = client.get("/models/demo-2/info").json()["learning_rate"]["rate"]
    source = folder / f"{best['name']}.safetensors"

    again = experiment.fine_tune(source, len(DECADES), rate, lambda *_: None)

    assert best["fine_tuned"] == again
    assert f"{best['name']}, {again:.1%};" in _summary(result)


def test_it_ends_with_a_page_and_a_way_to_take_it(
    client: httpx.Client, result: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert client.get(result["page"]).status_code == 200
    command, *words = result["pull"].split()

    assert command == "grasp"
    assert invoke(*words).stdout == f"demo-2-v{result['version']}.safetensors\n"


def test_without_a_server_the_same_files_make_the_same_bytes(
    client: httpx.Client,
    result: dict[str, Any],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # where decoded targets are kept
    parameters = tmp_path / "merge.json"
    parameters.write_text(json.dumps(client.get("/models/demo-2/info").json()["merge"]))
    sources = [folder / f"{decade}.safetensors" for decade in DECADES]
    output = tmp_path / "merged.safetensors"
    model = ("-a", SPEC.architecture, "--image-size", "32", "--config", parameters)

    invoke("merge", *sources, "-t", folder / "target.npz", *model, "--threads", "1", "-o", output)

    assert sha256_file(output) == client.get("/models/demo-2/info").json()["sha256"]


def test_people_see_a_table_and_a_plot(capsys: pytest.CaptureFixture[str]) -> None:
    results = [
        SourceResult("1970s", 0.3, "succeeded", 1.0, 1, 0.7),
        SourceResult("1980s", 0.51, "rejected", None, 1, 0.7),
    ]

    console().print(_rendered(results, 0.6))

    shown = capsys.readouterr().out
    assert re.search(r"1980s +0.510 +rejected +- +1 +0.700", shown)
    assert chart(["1970s", "1980s"], {"○": [0.3, 0.51], "●": [0.7, 0.7]}, 0.6) in shown


@pytest.mark.parametrize(("merged", "fine_tuned"), [(0.908, 0.902), (0.871, 0.905), (1.0, 0.2)])
def test_it_says_what_was_measured_and_what_chance_alone_does(
    merged: float, fine_tuned: float
) -> None:
    """Whichever is ahead. Chance: of two models that are right as often, on other digits each."""
    count = 357
    rng = np.random.default_rng(0)
    first, second = rng.binomial(count, merged, (2, 10_000)) / count
    said = _summary(
        {
            "merged": merged,
            "best_source": {"name": "1990s", "alone": 0.773, "fine_tuned": fine_tuned},
            "fine_tuned_ancestor": 0.745,
            "test_digits": count,
            "page": "http://127.0.0.1:8000/ui/models/demo",
            "pull": "grasp pull demo",
        }
    )

    assert f"the merged model gets {merged:.1%} right" in said
    assert f"the best source, 1990s, {fine_tuned:.1%};" in said
    [points] = map(float, re.findall(r"less than (\d\.\d) points apart says little", said))
    assert 0.5 < points < 6
    assert np.mean(abs(first - second) <= points / 100) > 0.94


def test_the_plot_is_to_scale() -> None:
    drawn = chart(["a", "b"], {"○": [0.31, 0.5], "●": [0.5, 0.5]}, 0.42).splitlines()

    assert drawn == [
        " 0.50 ┤     ●         ●",
        " 0.45 ┤",
        " 0.40 ┤┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄",
        " 0.35 ┤",
        " 0.30 ┤     ○",
        "      └────────────────────",
        "           a         b",
    ]


@pytest.mark.parametrize("sizes", [Sizes(), QUICK])
def test_nobody_sees_the_digits_of_another(
    sizes: Sizes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Least of all those of the target's test split."""
    everything = Digits.shuffled(3)
    seen: list[list[int]] = []

    def note(self: Digits, path: Path, *_: object) -> Path:
        rows = np.flatnonzero([np.shares_memory(ink, self.ink) for ink in everything.ink])
        seen.append(rows.tolist())
        return path

    monkeypatch.setattr(Digits, "shuffled", lambda _: everything)
    monkeypatch.setattr(Digits, "write", note)
    monkeypatch.setattr("grasp_cli.demo.experiment.train", lambda *_, **__: Path())
    monkeypatch.setattr("grasp_cli.demo.experiment.open_task", lambda *_, **__: None)
    experiment = Experiment(tmp_path, tmp_path, 3, sizes)

    experiment.train_ancestor(print)
    for decade in DECADES:
        experiment.train_source(decade, Path(), print)
    assert experiment.target == tmp_path / "target.npz"

    rows = [row for group in seen for row in group]
    assert len(seen) == len(DECADES) + 2
    assert len(set(rows)) == len(rows)
    assert len(seen[-1]) == sum(experiment.counts().values())


def test_the_target_has_few_labels_of_each_class() -> None:
    digits = Digits.shuffled(0)[:517]

    split = digits.split(train=6, val=10)

    assert np.bincount(digits.labels[split == 0]).tolist() == [6] * 10
    assert np.bincount(digits.labels[split == 1]).tolist() == [10] * 10
    assert np.count_nonzero(split == 2) == 357


def test_scanners_differ_and_the_same_scan_is_the_same() -> None:
    ink = Digits.shuffled(0)[:5].ink
    scans = {
        name: scanner.scan(ink, np.random.default_rng(0)).tobytes()
        for name, scanner in {**DECADES, "today": TODAY, "again": TODAY}.items()
    }

    assert scans["today"] == scans["again"]
    assert len(set(scans.values())) == len(DECADES) + 1


def test_without_scikit_learn_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['sklearn'] = None; from grasp_cli.main import main; main()"

    result = subprocess.run([sys.executable, "-c", code, "demo"], capture_output=True, text=True)

    assert result.returncode == 1
    assert result.stderr.startswith("grasp: the demo needs sklearn, which is not installed here\n")
    assert "grasp-merge[demo]" in result.stderr
