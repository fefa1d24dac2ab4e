"""Every command that talks to a server: what it prints, and how it exits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from typer.testing import CliRunner, Result

from grasp_cli.main import cli
from grasp_cli.progress import watch_jobs
from grasp_client import Grasp
from grasp_client._sync.jobs import Jobs
from registry.tables import Version
from tests.app.world import CLASSES, Server, World, checkpoint, sha256
from tests.client.hand import RACE, working

Run = Callable[..., Result]
JsonOf = Callable[..., Any]


@pytest.fixture
def run(server: Server, world: World, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command, which ends with this code."""
    monkeypatch.setenv("GRASP_URL", server.url)

    def run(*words: str | Path, code: int = 0, typed: str | None = None) -> Result:
        result = CliRunner().invoke(cli, [str(word) for word in words], input=typed)
        assert result.exit_code == code, result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return run


@pytest.fixture
def json_of(run: Run) -> JsonOf:
    """What a command prints with --json, which is one document and nothing else."""
    return lambda *words, **options: json.loads(run(*words, "--json", **options).stdout)


def lines(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def model(world: World) -> str:
    world.ready_model()
    return "merged"


def test_a_users_day(run: Run, world: World, source: Path) -> None:
    Path("faces.zip").write_bytes(b"PK images")
    with working(world):
        run("targets", "create", "faces", "faces.zip", "--wait")
        run("models", "create", "merged", "-a", "test_vit", "-t", "faces", "--wait")
        pushed = run("push", "merged", source, "--wait")
    pulled = run("pull", "merged")

    assert pushed.stdout == "site-a.safetensors: version 1\n"
    assert pulled.stdout == "merged-v1.safetensors\n"
    assert Path("merged-v1.safetensors").exists()


class TestPush:
    def test_it_says_how_to_go_on(self, run: Run, model: str, source: Path) -> None:
        result = run("push", model, source)

        job = result.stdout.removeprefix("site-a.safetensors: queued, ").strip()
        assert result.stderr == f"`grasp watch {job}` shows how it goes\n"

    def test_several_files_are_folded_in_this_order(
        self, run: Run, world: World, model: str, tmp_path: Path
    ) -> None:
        names = ["c.safetensors", "a.safetensors", "b.safetensors"]
        for seed, name in enumerate(names):
            (tmp_path / name).write_bytes(checkpoint(seed))

        with working(world):
            pushed = lines(run("push", model, *names, "--wait", "--json"))

        assert [job["version"] for job in pushed] == [1, 2, 3]
        assert [job["status"] for job in pushed] == ["succeeded"] * 3

    def test_as_json_it_is_the_source(self, json_of: JsonOf, model: str, source: Path) -> None:
        pushed = json_of("push", model, source, "--name", "a", "--classes", "F, M")

        assert (pushed["name"], pushed["classes"]) == ("a", ["F", "M"])
        assert pushed["sha256"] == sha256(source.read_bytes())
        assert pushed["job"].startswith("job_")

    def test_classes_may_be_json(self, json_of: JsonOf, model: str, source: Path) -> None:
        assert json_of("push", model, source, "--classes", '["F,", "M"]')["classes"] == ["F,", "M"]

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("bad", "rejected: accuracy fell"),
            ("broken", "failed: it did not fit\n  a smaller batch"),
        ],
    )
    def test_waiting_for_a_fold_that_does_not_succeed_exits_with_1(
        self, run: Run, world: World, model: str, source: Path, name: str, said: str
    ) -> None:
        with working(world):
            result = run("push", model, source, "--name", name, "--wait", code=1)

        assert result.stdout.startswith(f"{name}: {said}\n")

    def test_a_dry_run(self, run: Run, world: World, model: str, source: Path) -> None:
        with working(world):
            [job] = lines(run("push", model, source, "--dry-run", "--wait", "--json"))

        assert (job["kind"], job["status"], job["version"]) == ("dry_run", "succeeded", None)
        report = json.loads(run("jobs", "report", job["id"]).stdout)
        assert report["schema"] == 1

    def test_a_dry_run_says_what_would_become_of_it(
        self, run: Run, world: World, model: str, source: Path
    ) -> None:
        try_out = ("push", model, source, "--dry-run", "--wait")
        with working(world):
            good = run(*try_out, "--fail-if-refused")
            bad = run(*try_out, "--name", "bad")
            failed = run(*try_out, "--name", "bad", "--fail-if-refused", code=1)

        assert good.stdout.startswith("site-a.safetensors: would be accepted")
        refused = "bad: would be refused: 42 of 100 lost, 1 gained\n"
        assert bad.stdout == failed.stdout == refused

    def test_a_dry_run_shows_what_ran_against_each_other(
        self, run: Run, world: World, model: str, source: Path
    ) -> None:
        with working(world):
            result = run("push", model, source, "--name", "race", "--dry-run", "--wait")

        made, sentence, *table = result.stdout.splitlines()
        assert made == "race: would be accepted"
        assert sentence == (
            "  +1.8 points on test over doing without it (0.4 to 3.2); mean won over keep"
        )
        refusal = ["its", "outputs", "are", "not", "finite"]
        gained, measured = (
            ["+2.0", "points", "(0.0", "to", "4.0)"],
            ["0.9100", "12.5", "s", "800", "MB"],
        )
        assert [line.split() for line in table if line.strip()] == [
            [
                "candidate",
                "outcome",
                "log-likelihood",
                "val",
                "over",
                "keep",
                "test",
                "time",
                "memory",
            ],
            ["─" * len(table[2].strip())],
            ["keep", "lost", "-0.5000", "0.9000", "-", "-", "-", "-"],
            ["source", "out", "-", "-", "-", "-", "-", "-", *refusal],
            [*("mean", "won", "-0.2500", "±", "0.012", "0.9200"), *gained, *measured],
            ["grasp", "lost", "-0.5000", "0.9000", "-", "-", "-", "-", "as", "keep"],
        ]

    def test_what_would_be_refused_is_known_when_a_dry_run_has_ended(
        self, run: Run, model: str, source: Path
    ) -> None:
        result = run("push", model, source, "--fail-if-refused", code=2)

        assert "--dry-run and --wait" in result.output

    def test_bars_are_drawn_on_a_terminal(
        self, run: Run, world: World, model: str, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
        with working(world):
            result = run("push", model, source, "--wait")

        assert "━━━" in result.stderr
        assert result.stdout == "site-a.safetensors: version 1\n"

    def test_one_name_for_several_files_is_refused(
        self, run: Run, world: World, model: str, source: Path
    ) -> None:
        with world.nothing_left():
            result = run("push", model, source, source, "--name", "a", code=2)

        assert "one name does not fit several files" in result.stderr


class TestPull:
    def test_a_version_into_a_folder(self, run: Run, world: World, model: str) -> None:
        world.fold(1, weights=b"one")
        world.fold(2, weights=b"two")

        assert run("pull", model, "out/", "--version", "1").stdout == "out/merged-v1.safetensors\n"

        assert Path("out/merged-v1.safetensors").read_bytes() == b"one"

    def test_the_best_version(self, run: Run, g: Grasp, world: World, model: str) -> None:
        world.fold(1, weights=b"one")
        world.fold(2, weights=b"two")
        best = ("pull", model, "--version", "best")
        assert run(*best).stdout == "merged-v2.safetensors\n"  # none says, so it is the newest

        with world.database.write() as session:
            for version in session.scalars(select(Version)):
                likelihood = -float(version.number)
                version.metrics = {"after": {"val": {"log_likelihood": likelihood}}}

        assert run(*best).stdout == "merged-v1.safetensors\n"
        assert g.models.pull(model, "by-client", version="best").read_bytes() == b"one"
        assert "best" in run("models", "versions", model).stdout.splitlines()[-2]
        run("pull", model, "--version", "worst", code=2)

    def test_as_json(self, json_of: JsonOf, world: World, model: str) -> None:
        world.fold(1, weights=b"one")

        assert json_of("pull", model, "x.safetensors") == {
            "model": "merged",
            "version": 1,
            "file": "weights",
            "path": "x.safetensors",
            "size": 3,
            "sha256": sha256(b"one"),
        }

    def test_nothing_there_yet(self, run: Run, model: str) -> None:
        assert "no version yet" in run("pull", model, code=1).stderr

    def test_a_place_that_cannot_be_written(self, run: Run, world: World, model: str) -> None:
        world.fold(1)
        Path("file").touch()

        assert run("pull", model, "file/x", code=1).stderr.startswith("grasp: file")


class TestWatch:
    def test_a_job_state_by_state(self, run: Run, world: World, model: str, source: Path) -> None:
        run("push", model, source)
        with working(world):
            [job] = json.loads(run("jobs", "--kind", "fold", "--json").stdout)
            states = lines(run("watch", job["id"], "--json"))

        assert {state["id"] for state in states} == {job["id"]}
        assert states[-1]["status"] == "succeeded"

    def test_all_jobs_of_a_model(
        self, run: Run, world: World, model: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for seed, name in enumerate(("one", "bad", "two")):
            world.post_source(checkpoint(seed), fields={"name": name})

        def watch(*args: Any, **options: Any) -> None:
            with working(world):  # not earlier, or there is nothing to be seen
                watch_jobs(*args, **options)

        monkeypatch.setattr("grasp_cli.progress.watch_jobs", watch)
        result = run("watch", model, code=1)

        ends = [line for line in result.stdout.splitlines() if not line.startswith(" ")]
        assert ends == ["one: version 1", "bad: rejected: accuracy fell", "two: version 2"]

    def test_a_job_goes_on_without_its_watcher(
        self, run: Run, model: str, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Jobs, "follow", interrupt)

        result = run("push", model, source, "--wait", code=130)

        assert "site-a.safetensors goes on: `grasp watch job_" in result.stderr

    def test_nothing_to_watch(self, run: Run, model: str) -> None:
        assert run("watch", model).stdout == "nothing is under way\n"
        assert run("watch", model, "--json").stdout == ""


class TestModels:
    def test_options_of_a_new_one(self, json_of: JsonOf, world: World) -> None:
        world.ready_target()

        made = json_of(
            *("models", "create", "merged", "--architecture", "test_vit", "--target", "faces"),
            *("--classes", "F,M", "--image-size", "64", "--seed", "3", "--queue", "cpu"),
            *("--set", "tau=0.1", "--set", "refine.epochs=4", "--set", "granularity=channel"),
            *("--keep-versions", "2", "--keep-sources"),
            *("--preprocess", "crop_pct=1.0", "--preprocess", "mean=[0.1,0.2,0.3]"),
        )

        assert (made["classes"], made["image_size"], made["seed"]) == (["F", "M"], 64, 3)
        assert made["preprocessing"]["crop_pct"] == 1.0
        assert made["preprocessing"]["mean"] == [0.1, 0.2, 0.3]
        assert (made["queue"], made["keep_versions"], made["keep_sources"]) == ("cpu", 2, True)
        merge = made["merge"]
        assert (merge["tau"], merge["granularity"]) == (0.1, "channel")
        assert merge["refine"]["epochs"] == 4

    def test_one_that_begins_from_weights(self, run: Run, world: World, source: Path) -> None:
        world.ready_target()
        with working(world):
            result = run(
                *("models", "create", "merged", "-a", "test_vit", "-t", "faces"),
                *("--weights", source, "--wait"),
            )

        assert result.stdout == "merged: done\ninitial: version 1\n"

    def test_one_with_a_base(self, json_of: JsonOf, run: Run, world: World, source: Path) -> None:
        world.ready_target()
        described = ("-a", "test_vit", "-t", "faces")

        made = json_of("models", "create", "merged", *described, "--base", source)
        again = json_of(
            "models", "create", "again", *described, "--base", "initial", "--weights", source
        )

        digest = sha256(source.read_bytes())
        assert made["base"] == again["base"] == {"sha256": digest, "size": source.stat().st_size}
        assert digest in run("models", "show", "merged").stdout

    def test_changes(self, json_of: JsonOf, run: Run, model: str) -> None:
        run("models", "update", model, "--keep-versions", "2", "--queue", "gpu", "--keep-sources")

        changed = json_of(
            *("models", "update", model, "--name", "other", "--set", "gate.max_drop=0.5"),
            *("--keep-versions", "0", "--queue", "any", "--drop-sources"),
        )

        assert (changed["name"], changed["merge"]["gate"]["max_drop"]) == ("other", 0.5)
        assert (changed["keep_versions"], changed["queue"]) == (None, None)
        assert changed["keep_sources"] is False

    def test_no_change_at_all_is_a_mistake(self, run: Run, model: str) -> None:
        assert "nothing to change" in run("models", "update", model, code=2).stderr

    @pytest.mark.parametrize("given", ["tau", "=3", "tau=1 refine.=2", "tau=1 tau.x=2"])
    def test_settings_that_are_none(self, run: Run, model: str, given: str) -> None:
        words = [word for pair in given.split() for word in ("--set", pair)]

        assert "is not NAME=VALUE" in run("models", "update", model, *words, code=2).stderr

    def test_the_option_that_is_wrong_is_named(self, run: Run) -> None:
        words = ("models", "create", "m", "-a", "test_vit", "-t", "faces", "--preprocess", "crop")

        assert "--preprocess" in run(*words, code=2).stderr

    def test_a_value_that_is_refused_is_named(self, run: Run, model: str) -> None:
        result = run("models", "update", model, "--set", "refine.epochs=-1", code=1)

        assert result.stderr.startswith("grasp: merge.refine.epochs: ")

    def test_versions_reports_and_provenance(
        self, run: Run, json_of: JsonOf, world: World, model: str
    ) -> None:
        world.fold(1)
        world.fold(2)

        assert [it["number"] for it in json_of("models", "versions", model)] == [2, 1]
        assert json.loads(run("models", "report", model, "--version", "1").stdout)["schema"] == 1
        assert json_of("models", "provenance", model)["version"] == 2
        assert "75.0%" in run("models", "provenance", model, "--version", "1").stdout
        assert "sha256" in run("models", "versions", model).stdout

    def test_versions_say_what_came_in_how_and_what_it_was_worth(
        self, run: Run, world: World, model: str
    ) -> None:
        world.fold(1)
        world.fold(2)
        figures = RACE.model_copy(update={"transferred_share": 0.25})
        with world.database.write() as session:
            newest = session.scalars(select(Version).where(Version.number == 2)).one()
            newest.metrics = figures.model_dump(mode="json")
        run("rollback", model, "1")

        lines = run("models", "versions", model).stdout.splitlines()

        rows = [line.split() for line in lines if line.strip()[:1].isdigit()]
        assert rows[0][4:7] == ["rollback", "to", "1"]
        worth = ["+1.8", "points", "(0.4", "to", "3.2)"]
        assert rows[1][3] == "-"  # nobody said how good it was before
        assert rows[1][5:12] == ["grasp", "25%", *worth]
        assert rows[2][5:8] == ["grasp", "-", "-"]

    def test_weights_that_were_kept_are_nobodys(self, run: Run, world: World, model: str) -> None:
        world.fold(1)
        lost = tuple(each.model_copy(update={"outcome": "lost"}) for each in RACE.candidates)
        with world.database.write() as session:
            newest = session.scalars(select(Version)).one()
            figures = RACE.model_copy(update={"candidates": lost, "worth": None})
            newest.metrics = figures.model_dump(mode="json")

        assert "weights kept" in run("models", "versions", model).stdout

    def test_what_is_not_the_default_is_said(self, run: Run, model: str) -> None:
        assert "as by default" in run("models", "show", model).stdout

        changed = run("models", "update", model, "--set", "heat=0.25", "--set", "refine.steps=7")

        line = next(line for line in changed.stdout.splitlines() if line.startswith("merge"))
        assert "heat 0.25" in line
        assert "refine.steps 7" in line
        assert "gate" not in line

    def test_lists_say_how_good_models_are(
        self, run: Run, json_of: JsonOf, world: World, model: str
    ) -> None:
        world.fold(1)
        with world.database.write() as session:
            newest = session.scalars(select(Version)).one()
            newest.metrics = {"after": {"val": {"accuracy": 0.875}, "test": {"accuracy": 0.75}}}

        row = run("models", "list").stdout.strip().splitlines()[-1].split()
        assert row[2:5] == ["1", "0.8750", "0.7500"]
        [listed] = json_of("models", "list")
        assert listed == json_of("models", "show", model)
        assert listed["metrics"] == newest.metrics

    def test_two_models_beside_each_other(
        self, run: Run, json_of: JsonOf, world: World, model: str
    ) -> None:
        world.fold(1)
        world.fold(2)
        world.ready_model("other")

        printed = run("models", "compare", f"{model}@1", model).stdout
        rows = [line.split() for line in printed.splitlines()]

        assert ["architecture", "test_vit", "test_vit"] in rows
        assert ["version", "1", "2", "≠"] in rows
        one, two = json_of("models", "compare", model, "other")
        assert (one["version"], "version" in two) == (2, False)
        run("models", "compare", f"{model}@7", model, code=2)

    def test_deleting_asks_first(self, run: Run, json_of: JsonOf, model: str) -> None:
        run("models", "delete", model, typed="n\n", code=1)
        assert [it["name"] for it in json_of("models")] == [model]

        run("models", "delete", model, typed="y\n")
        assert json_of("models") == []

    def test_deleting_without_asking(self, json_of: JsonOf, model: str) -> None:
        assert json_of("models", "delete", model, "--yes") == {"deleted": model}


def test_rollback(run: Run, json_of: JsonOf, world: World, model: str) -> None:
    world.fold(1)
    world.fold(2)

    assert run("rollback", model, "1").stdout == "merged: version 3 equals version 1\n"
    assert json_of("rollback", model, "2")["rollback_of"] == 2


def test_targets(run: Run, json_of: JsonOf, world: World) -> None:
    Path("faces/F").mkdir(parents=True)
    Path("faces/F/1.png").touch()

    made = json_of("targets", "create", "faces", "faces")
    world.validate()

    assert made["status"] == "validating"
    assert json_of("targets", "show", "faces")["classes"] == list(CLASSES)
    assert "6: 3 F, 3 M" in run("targets", "show", "faces").stdout
    assert json_of("targets", "--status", "failed") == []
    assert run("targets", "delete", "faces", "-y").stdout == "faces is deleted\n"


def test_jobs(run: Run, json_of: JsonOf, world: World, model: str, source: Path) -> None:
    run("push", model, source)
    [job] = json_of("jobs", "list", "--model", model, "--status", "queued", "--limit", "1")

    assert json_of("jobs", "cancel", job["id"])["status"] == "cancelled"
    assert "cancelled" in run("jobs", "show", job["id"]).stdout
    with working(world):
        assert run("jobs", "retry", job["id"], "--wait").stdout == f"{job['id']}: version 1\n"
    assert json_of("jobs", "show", job["id"])["version"] == 1
    assert run("jobs", "retry", job["id"], code=1).stderr.startswith("grasp: ")


def test_jobs_that_failed_for_one_reason(
    run: Run, json_of: JsonOf, world: World, model: str, source: Path
) -> None:
    run("push", model, source)
    world.fail()
    [job] = json_of("jobs", "list", "--code", "out_of_memory")

    result = run("jobs", "retry-failed", "out_of_memory")

    assert result.stdout == f"{job['id']}: queued\nqueued again: 1\n"
    assert json_of("jobs", "retry-failed", "out_of_memory") == []


def test_sources(run: Run, json_of: JsonOf, model: str, source: Path) -> None:
    pushed = json_of("push", model, source)

    assert json_of("sources", "--model", model, "--status", "queued") == [pushed]
    assert json_of("sources", "show", pushed["id"]) == pushed
    assert pushed["sha256"] in run("sources", "show", pushed["id"]).stdout


@pytest.mark.parametrize("noun", ["models", "targets", "sources", "jobs"])
def test_lists_are_tables(run: Run, world: World, noun: str) -> None:
    empty = run(noun).stdout
    assert empty.startswith("no ")
    world.ready_model("merged", "faces")
    world.post_source()

    filled = run(noun).stdout

    [row, *_] = [line for line in filled.splitlines() if "queued" in line or "ready" in line]
    assert "merged" in row or "faces" in row
    assert run(noun, "list").stdout == filled


class TestMistakes:
    def test_no_server(self, run: Run) -> None:
        result = run("models", "--url", "http://127.0.0.1:1", code=1)

        assert result.stderr.startswith("grasp: cannot reach http://127.0.0.1:1: ")
        assert "`grasp serve` starts one" in result.stderr
        assert result.stdout == ""

    def test_no_address(self, run: Run) -> None:
        assert "http://host:port" in run("models", "--url", "localhost:8000", code=1).stderr

    @pytest.mark.parametrize(
        ("word", "said"),
        [
            ("mergd", "did you mean merged?"),
            ("xyz", "there are merged"),
            ("mdl_1", "there are merged"),
        ],
    )
    def test_a_model_of_another_name(
        self, run: Run, model: str, source: Path, word: str, said: str
    ) -> None:
        result = run("push", word, source, code=1)

        assert result.stderr == f"grasp: there is no model {word!r}\n  {said}\n"

    def test_a_target_of_another_name(self, run: Run, world: World) -> None:
        world.ready_target("faces")

        result = run("models", "create", "m", "-a", "test_vit", "-t", "face", code=1)

        assert "did you mean faces?" in result.stderr

    def test_another_architecture(self, run: Run, model: str, tmp_path: Path) -> None:
        shapes = {f"block__{number}": (1,) for number in range(9)}
        other = tmp_path / "other.safetensors"
        other.write_bytes(checkpoint(1, stem__weight=(5, 3), head__bias=None, **shapes))

        result = run("push", model, other, code=1)

        assert result.stderr == (
            "grasp: other.safetensors is not a test_vit checkpoint\n"
            "  missing: head.bias\n"
            "  unexpected: block.0, block.1, block.2 and 6 more\n"
            "  wrong shape: stem.weight [5, 3] instead of [4, 3]\n"
            "  make sure that the checkpoint was trained as test_vit\n"
        )

    def test_other_classes(self, run: Run, model: str, tmp_path: Path) -> None:
        other = tmp_path / "other.safetensors"
        other.write_bytes(checkpoint(1, head__weight=(3, 4), head__bias=(3,)))

        result = run("push", model, other, code=1)

        assert "head.bias [3] instead of [2]" in result.stderr
        assert result.stderr.endswith("as --classes A,B,C\n")

    def test_class_names_with_control_characters(self, run: Run, model: str, source: Path) -> None:
        result = run("push", model, source, "--classes", "F,M\x1b[31m", code=2)

        assert "holds the" in result.stderr
        assert "\x1b[31m" not in result.stderr

    def test_no_such_file(self, run: Run, world: World, model: str) -> None:
        with world.nothing_left():
            assert "nowhere" in run("push", model, "nowhere", code=2).stderr

    def test_no_key(self, run: Run, world: World) -> None:
        secret = world.key("ada", "read")["Authorization"].removeprefix("Bearer ")

        assert "--key or GRASP_KEY" in run("models", code=1).stderr
        assert run("models", "--key", secret, "--json").stdout == "[]\n"

    def test_a_file_of_another_kind(self, run: Run, model: str) -> None:
        Path("notes.txt").write_text("no weights in here, but some words" * 10)

        assert run("push", model, "notes.txt", code=1).stderr.startswith("grasp: notes.txt ")


def test_names_are_completed(world: World, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from grasp_cli.arguments import complete_model, complete_target

    world.ready_model("merged", "faces")
    monkeypatch.setenv("GRASP_URL", server.url)
    assert (complete_model("me"), complete_model("x")) == (["merged"], [])
    assert complete_target("") == ["faces"]
    monkeypatch.setenv("GRASP_URL", "http://127.0.0.1:1")
    assert complete_model("") == []
