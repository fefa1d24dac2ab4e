"""What somebody at a terminal sees: whole tables, what is interrupted, mistakes in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from grasp_cli.main import cli
from grasp_cli.tables import listed
from grasp_client import files
from grasp_client._sync.jobs import Jobs
from grasp_client._sync.uploads import Uploads
from tests.app.world import Server, World
from tests.client.hand import working

Run = Callable[..., Result]
NEW = ("models", "create", "other", "-a", "test_vit", "-t", "faces")


@pytest.fixture
def run(server: Server, world: World, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("GRASP_URL", server.url)
    world.ready_model()

    def run(*words: str | Path, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, [str(word) for word in words])
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.mark.parametrize("width", [10, 40, 60, 200])
def test_nothing_of_a_table_is_cut(width: int) -> None:
    rows = [("job_01m7jg53b2e2zn9jv4ffh0xyek", "a model with a long name", "succeeded")]
    console = Console(width=width)

    with console.capture() as captured:
        console.print(listed(("job", "of", "status"), rows, "none"), crop=False)

    [line] = [line for line in captured.get().splitlines() if "job_" in line]
    gap = "   " if width == 200 else " "
    assert line.strip() == gap.join(rows[0])


def test_a_large_upload_that_is_interrupted_is_gone_on_with(
    run: Run, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LARGE_BYTES", 1)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Uploads, "_send_part", interrupt)
        result = run("push", "merged", source, code=130)

    kept = "what has arrived is kept; the same command goes on with it"
    assert result.stderr == f"site-a.safetensors: {kept}\n"
    assert run("push", "merged", source).stdout.startswith("site-a.safetensors: queued")


def test_a_wait_that_is_interrupted_leaves_the_job(
    run: Run, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Jobs, "follow", interrupt)

    result = run("push", "merged", source, "--wait", code=130)

    assert "`grasp watch job_" in result.stderr.splitlines()[-1]  # and no bar after it


def test_bytes_that_were_offered_before_are_said_to_be(
    run: Run, world: World, source: Path
) -> None:
    with working(world):
        run("push", "merged", source, "--wait")

    again = run("push", "merged", source)

    assert again.stdout.startswith("site-a.safetensors: succeeded, job_")
    assert again.stderr == "site-a.safetensors was offered before, and not again\n"


def test_a_rejected_source_says_what_can_be_typed(run: Run, world: World, source: Path) -> None:
    with working(world):
        result = run("push", "merged", source, "--name", "bad", "--wait", code=1)
        shown = world.client.get("/jobs").json()["items"][0]
        job, model = shown["id"], shown["model"]

        assert result.stdout.endswith(
            f"\n  `grasp jobs report {job}` has the figures; to allow it,"
            f" `grasp models update {model} --set gate.max_drop=…`, `grasp push {model} FILE`,"
            f" then `grasp jobs retry {job}`\n"
        )
        run("models", "update", model, "--set", "gate.max_drop=0.5")
        run("push", model, source)
        assert run("jobs", "retry", job).stdout == f"{job}: queued\n"


def test_a_rejected_source_that_is_kept_need_not_be_pushed_again(
    run: Run, world: World, source: Path
) -> None:
    world.client.patch("/models/merged", json={"keep_sources": True})
    with working(world):
        result = run("push", "merged", source, "--name", "bad", "--wait", code=1)

    assert "--set gate.max_drop=…`, then `grasp jobs retry job_" in result.stdout


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("norm", "--set gate.max_norm_ratio=…`"),
        ("floor", "--set gate.max_drop=1`"),
        (None, "--set gate.…`"),
        ("not_finite", "no setting allows what is not finite: push a checkpoint whose values"),
    ],
)
def test_what_allows_a_rejected_source_depends_on_its_cause(
    run: Run, world: World, cause: str | None, said: str
) -> None:
    world.post_source()
    world.reject(cause=cause)
    job = world.client.get("/jobs").json()["items"][0]["id"]

    shown = run("watch", job, code=1).stdout

    assert said in shown
    assert ("retry" in shown) == (cause != "not_finite")


def test_a_folder_without_files_is_not_sent(run: Run, world: World) -> None:
    Path("empty/inside").mkdir(parents=True)

    with world.nothing_left():
        assert "no files in 'empty'" in run("targets", "create", "t", "empty", code=1).stderr


def test_a_download_names_the_file_that_was_asked_for(run: Run, world: World) -> None:
    world.fold(1)
    Path("taken").mkdir()
    Path("taken/merged-v1.safetensors").mkdir()

    result = run("pull", "merged", "taken", code=1)

    assert result.stderr == "grasp: taken/merged-v1.safetensors: Is a directory\n"


def test_target_data_is_not_advised_to_be_converted(run: Run) -> None:
    np.savez("a.npz", x=np.zeros(2), y=np.zeros(2))

    said = run("push", "merged", "a.npz", code=1).stderr

    assert "it is a NumPy archive (.npz): target data, not weights\n" in said
    assert "`grasp targets create NAME FILE`" in said
    assert "`grasp convert`" not in said


def test_text_is_not_advised_to_be_sent_again(run: Run) -> None:
    for text in ("notes", "the weights are on the other disk\n"):
        Path("a.safetensors").write_text(text)

        said = run("push", "merged", "a.safetensors", code=1).stderr

        assert said.startswith("grasp: a.safetensors is not safetensors: it is text\n  send the ch")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["jobs", "--status", "x"], "status: Input should be 'queued', "),
        (["models", "show", "a b"], "model: only letters, "),
        ([*NEW, "--target", "a b"], "target: only letters, "),
        ([*NEW, "--set", "taus=1"], "merge.taus: there is no such parameter"),
        ([*NEW, "--set", "tau=7"], "merge.tau: must be a number from 0 to 1, or auto"),
        (["models", "update", "merged", "--set", "taus=1"], "merge.taus: there is no such"),
    ],
)
def test_a_wrong_value_is_explained_by_its_name(run: Run, words: list[str], said: str) -> None:
    assert run(*words, code=1).stderr.startswith(f"grasp: {said}")


def test_the_version_is_an_option_too(run: Run) -> None:
    assert run("--version").stdout == run("version").stdout
