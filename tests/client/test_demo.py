"""`grasp demo` on a real service, with few digits and epochs; and what it is made of."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from grasp_cli.demo.command import SourceResult, _rendered, _summary, chart
from grasp_cli.demo.digits import DECADES, TODAY, Digits
from grasp_cli.demo.experiment import QUICK, SPEC, Comparison, Experiment, Sizes
from grasp_cli.main import cli
from grasp_cli.session import console
from grasp_core import fold, open_task, parse_config
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
    """What the demo says as JSON, on a server where somebody has used its name before.

    For the second seed it has the first again, without the server.
    """
    again: list[Comparison] = []
    replay = Experiment.replay

    def replay_the_first(self: Experiment, progress: Callable[[float, float], None]) -> Comparison:
        assert self.seed == 1
        again.append(replay(replace(self, seed=0), progress))
        return again[0]

    taken = client.post("/targets", data={"name": "demo"}, files={"file": ("a.npz", b"nothing")})
    assert taken.status_code == 202
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Experiment, "replay", replay_the_first)
        result = invoke(
            "demo", "--quick", "--seeds", 2, "--files", folder, "--url", client.base_url, "--json"
        )
    found: dict[str, Any] = json.loads(result.stdout)
    return found | {"again": again[0]}


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
    alone = {source["source"]: source["alone"] for source in result["sources"]}
    assert result["best_source"]["alone"] == alone[result["best_source"]["name"]]
    assert result["test_digits"] == 220 - 60 - 100


def test_without_a_server_it_comes_to_the_same(result: dict[str, Any]) -> None:
    again, (first, second) = result["again"], result["seeds"]

    assert (first["seed"], second["seed"]) == (0, 1)
    assert again.merged == first["merged"] == second["merged"] == result["merged"]
    assert again.controls.ancestor == first["ancestor"] == result["fine_tuned_ancestor"]
    assert again.controls.best == first["best_source"] == result["best_source"]["fine_tuned"]
    assert again.controls.best_source == result["best_source"]["name"]


def test_controls_have_the_steps_of_a_fold_and_the_best_is_chosen_by_validation(
    result: dict[str, Any], folder: Path, client: httpx.Client, tmp_path: Path
) -> None:
    experiment = Experiment(folder, tmp_path, 0, QUICK)
    rate = client.get("/models/demo-2/info").json()["learning_rate"]["rate"]
    config = parse_config(experiment.merge | {"method": "source"})
    refine = config.refine.model_copy(update={"lr": rate})
    task = open_task(folder / "target.npz", SPEC, cache_dir=tmp_path)
    reports = {
        decade: fold(
            SPEC,
            folder / f"{decade}.safetensors",
            task,
            tmp_path / decade,
            config=config.model_copy(update={"refine": refine}),
            force=True,
        )
        for decade in DECADES
    }

    metrics = {name: report.metrics.after for name, report in reports.items()}
    best = max(metrics, key=lambda name: metrics[name].val.log_likelihood)  # type: ignore[union-attr, arg-type, return-value]

    assert result["best_source"]["name"] == best
    assert result["best_source"]["fine_tuned"] == metrics[best].test.accuracy  # type: ignore[union-attr]
    assert all(report.history[-1].step == QUICK.steps for report in reports.values())


def test_it_ends_with_a_page_and_a_way_to_take_it(
    client: httpx.Client, result: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert client.get(result["page"]).status_code == 200
    command, *words = result["pull"].split()

    assert command == "grasp"
    assert invoke(*words).stdout == f"demo-2-v{result['version']}.safetensors\n"


@pytest.mark.proof
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
        SourceResult("1970s", 0.3, "succeeded", "+1.8 points; mean won", 1.0, 1, 0.7),
        SourceResult("1980s", 0.51, "rejected", None, None, 1, 0.7),
    ]

    console().print(_rendered(results, 0.6))

    shown = capsys.readouterr().out
    assert re.search(r"1970s +0.300 +succeeded +100% +1 +0.700 +\+1.8 points", shown)
    assert re.search(r"1980s +0.510 +rejected +- +1 +0.700", shown)
    assert chart(["1970s", "1980s"], {"○": [0.3, 0.51], "●": [0.7, 0.7]}, 0.6) in shown


def summarize(*differences: float) -> str:
    """Where the merged model was so much better than the best source, seed by seed."""
    return _summary(
        {
            "seeds": [
                {"merged": 0.9, "best_source": 0.9 - difference, "ancestor": 0.7}
                for difference in differences
            ],
            "test_digits": 357,
            "page": "http://127.0.0.1:8000/ui/models/demo",
            "pull": "grasp pull demo",
        }
    )


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ((0.02, 0.03, 0.04), "+3.0 ± 0.6 points, ahead in 3 of 3: here the merge pays."),
        ((-0.02, -0.03, -0.04), "ahead in 0 of 3: here the merge does not pay."),
        ((0.05, -0.03, 0.01), "in 2 of 3: here the merge is neither clearly better nor worse."),
        ((0.0, 0.0, 0.0), "in 0 of 3: here the merge is neither clearly better nor worse."),
        ((0.05,), "+5.0 points, of which one run says little."),
    ],
)
def test_it_says_whether_the_merge_pays(differences: tuple[float, ...], said: str) -> None:
    text = summarize(*differences)

    assert said in text
    assert "Beside the ancestor, fine-tuned: +20.0" in text


def test_it_shows_the_spread() -> None:
    text = summarize(0.0, 0.1)

    assert "right (2 times, with other digits each):" in text
    assert "  the merged model                90.0%, from 90.0% to 90.0%\n" in text
    assert "  the best source, fine-tuned     85.0%, from 80.0% to 90.0%\n" in text


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
    assert "py3-none-any.whl[demo]'`" in result.stderr
