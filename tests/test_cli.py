import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typer.testing import CliRunner, Result

import app.serve
import worker.main
from app.access.auth import is_loopback
from grasp_cli.main import cli, main
from grasp_cli.service import opened_database
from registry.database import Database
from registry.jobs import queue
from registry.jobs.transitions import WORKER_LOST
from registry.keys import authenticate, list_keys
from registry.process.settings import Settings
from registry.tables import ApiKey, utc_now
from registry.targets import create_target

pytestmark = pytest.mark.usefixtures("no_settings")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def stored_keys() -> list[ApiKey]:
    database = Database(Settings().database)
    with database.read() as session:
        keys = list_keys(session)
    database.close()
    return keys


def test_version() -> None:
    result = invoke("version")

    assert result.exit_code == 0
    assert result.stdout.strip() == version("grasp-merge")


def test_script_is_installed() -> None:
    [script] = entry_points(group="console_scripts", name="grasp")

    assert script.load() is main


def commands(group: TyperGroup, *path: str) -> Iterator[tuple[tuple[str, ...], TyperCommand]]:
    """All that do something, with the words that call them."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, *path, name)
        else:
            assert isinstance(command, TyperCommand)
            yield (*path, name), command


def test_every_command_says_what_it_does_and_speaks_json_if_it_talks_to_a_server() -> None:
    root = get_command(cli)
    assert isinstance(root, TyperGroup)
    online = 0
    for path, command in commands(root):
        assert command.help, path
        options = {option for parameter in command.params for option in parameter.opts}
        if "--url" in options:
            online += 1
            assert {"--key", "--json"} <= options, path
    assert online > 20


def test_words_are_completed() -> None:
    typed = {"_GRASP_COMPLETE": "complete_bash", "COMP_WORDS": "grasp pu", "COMP_CWORD": "1"}

    result = CliRunner().invoke(cli, [], env=typed, prog_name="grasp")

    assert result.stdout.split() == ["push", "pull"]


def test_help_needs_no_more_than_it_shows() -> None:
    """So that every command starts at once: what talks, stores or computes is loaded when used."""
    code = (
        "import sys; from grasp_cli.main import cli; cli(['--help'], standalone_mode=False);"
        " print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )

    process = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )

    late = {"anyio", "celery", "fastapi", "httpx", "sqlalchemy", "uvicorn"}
    assert late & set(process.stderr.split()) == set()


@pytest.mark.parametrize(
    "command", [("serve",), ("worker",), ("admin", "migrate"), ("admin", "keys", "list")]
)
def test_without_the_service_its_commands_say_where_it_is(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in ("app.serve", "registry.process.home", "registry.database", "registry.keys"):
        monkeypatch.setitem(sys.modules, room, None)

    result = invoke(*command)

    assert result.exit_code == 2
    assert result.stderr.startswith("grasp: the service is not installed here, only its client\n")
    assert "make serve" in result.stderr


def test_a_package_that_the_service_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy.exc", None)

    result = invoke("admin", "migrate")

    assert result.exit_code == 2
    assert result.stderr.startswith("grasp: the service needs sqlalchemy, which is not installed")


def test_serve_hands_the_settings_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRASP_PORT", "8123")
    served: list[Settings] = []
    monkeypatch.setattr(app.serve, "serve", served.append)

    result = invoke("serve")

    assert result.exit_code == 0
    assert [settings.port for settings in served] == [8123]


def test_options_of_serve_win_and_reach_the_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("GRASP_PORT", "GRASP_HOST", "GRASP_HOME"):
        monkeypatch.setenv(name, "1")
    Path(".env").write_text("GRASP_PORT=2\n")
    served: list[Settings] = []
    monkeypatch.setattr(app.serve, "serve", served.append)

    result = invoke("serve", "--port", "8123", "--host", "::1", "--home", str(tmp_path / "home"))

    assert result.exit_code == 0
    [settings] = served
    assert (settings.port, settings.host, settings.home) == (8123, "::1", tmp_path / "home")
    assert Settings() == settings  # as a child reads them
    assert invoke("serve", "--port", "65536").exit_code == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", "localhost.evil"])
def test_only_loopback_is_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_serve_refuses_any_address_but_loopback_without_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRASP_HOST", "0.0.0.0")
    monkeypatch.setenv("GRASP_PORT", "0")

    result = invoke("serve")

    assert result.exit_code == 2
    assert "refusing to listen on 0.0.0.0" in result.stderr
    assert "grasp admin keys create" in result.stderr


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_the_setting_that_is_wrong_is_named(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRASP_PORT", "http")

    result = invoke(command)

    assert result.exit_code == 2
    assert "GRASP_PORT: " in result.stderr


def test_settings_that_do_not_go_together_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRASP_LEASE_SECONDS", "1")

    result = invoke("worker")

    assert result.exit_code == 2
    assert "GRASP_LEASE_SECONDS must be twice GRASP_HEARTBEAT_SECONDS" in result.stderr


def test_a_key_is_shown_once_and_stored_hashed() -> None:
    result = invoke("admin", "keys", "create", "--owner", "ada", "--scope", "write")

    assert result.exit_code == 0
    secret = result.stdout.strip()
    [key] = stored_keys()
    assert (key.owner, key.scope, key.expires_at) == ("ada", "write", None)
    assert secret not in invoke("admin", "keys", "list").stdout
    listed = invoke("admin", "keys", "list", "--json").stdout
    assert secret not in listed
    [said] = json.loads(listed)
    assert (said["id"], said["owner"], said["scope"]) == (key.id, "ada", "write")
    assert (said["revoked"], said["expires_at"]) == (False, None)
    database = Database(Settings().database)
    with database.read() as session:
        found = authenticate(session, secret, utc_now())
    database.close()
    assert found is not None
    assert found[0].owner == "ada"


def test_a_key_can_expire() -> None:
    invoke("admin", "keys", "create", "--owner", "ada", "--scope", "read", "--expires", "7")

    [key] = stored_keys()
    assert key.expires_at is not None
    assert timedelta(days=6) < key.expires_at - utc_now() <= timedelta(days=7)


def test_a_key_can_be_revoked_once() -> None:
    invoke("admin", "keys", "create", "--owner", "ada", "--scope", "read")
    [key] = stored_keys()

    first = invoke("admin", "keys", "revoke", key.id)
    second = invoke("admin", "keys", "revoke", key.id)

    assert first.exit_code == 0
    assert second.exit_code == 2
    assert key.id in second.stderr
    assert "revoked" in invoke("admin", "keys", "list").stdout


def test_an_unknown_scope_is_refused() -> None:
    result = invoke("admin", "keys", "create", "--owner", "ada", "--scope", "root")

    assert result.exit_code == 2
    assert not Settings().home.exists()


def test_jobs_of_all_owners_are_listed_and_cancelled() -> None:
    with opened_database() as database, database.write() as session:
        for owner in ("ada", "bob"):
            create_target(session, owner, "faces", uri="file:///nowhere")

    listed = invoke("admin", "jobs", "list").stdout.splitlines()
    jobs = {line.split()[1]: line.split()[0] for line in listed}
    first = invoke("admin", "jobs", "cancel", jobs["bob"])
    again = invoke("admin", "jobs", "cancel", jobs["bob"])
    nobodys = invoke("admin", "jobs", "cancel", "job_x")

    assert sorted(jobs) == ["ada", "bob"]
    assert (first.exit_code, first.stderr) == (0, f"{jobs['bob']} is cancelled\n")
    assert (again.exit_code, nobodys.exit_code) == (2, 2)
    assert "has ended" in again.stderr
    assert jobs["bob"] not in invoke("admin", "jobs", "list").stdout
    assert jobs["bob"] in invoke("admin", "jobs", "list", "--ended").stdout


def test_migrate_makes_the_database() -> None:
    assert invoke("admin", "migrate").exit_code == 0
    assert stored_keys() == []


@pytest.mark.parametrize("command", [("migrate",), ("keys", "list"), ("scrub",), ("retry", "x")])
def test_a_database_that_does_not_answer_is_told_in_a_line(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRASP_DATABASE_URL", "postgresql://ada:secret@127.0.0.1:1/grasp")
    monkeypatch.setenv("GRASP_DATABASE_WAIT_SECONDS", "0")

    result = invoke("admin", *command)

    assert result.exit_code == 2
    assert "connection failed" in result.stderr
    assert "secret" not in result.stderr


@pytest.mark.parametrize("command", [("admin", "keys", "list"), ("worker",)])
def test_a_home_that_cannot_be_used_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRASP_HOME", str(tmp_path / "file" / "home"))

    result = invoke(*command)

    assert result.exit_code == 2
    assert result.stderr.startswith(f"grasp: {tmp_path / 'file'}")
    assert "GRASP_HOME" in result.stderr


def test_a_worker_per_device_is_kept_running(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[list[dict[str, str]]] = []
    monkeypatch.setattr(worker.main, "run_many", kept.append)

    assert invoke("worker", "--devices", "0,1").exit_code == 0
    assert invoke("worker", "--devices", "cpu", "--concurrency", "2").exit_code == 0

    assert [len(environments) for environments in kept] == [2, 2]
    assert kept[0][1] == {"CUDA_VISIBLE_DEVICES": "1"}
    assert kept[1][0]["GRASP_DEVICE"] == "cpu"


def test_an_administrator_retries_what_failed_for_all_owners() -> None:
    with opened_database() as database:
        for owner in ("ada", "bob"):
            with database.write() as session:
                create_target(session, owner, "faces", uri="file:///nowhere")
            with database.write() as session:
                lease = queue.claim(session, "wrk_a", utc_now(), lease_seconds=60, max_losses=1)
                assert lease is not None
                queue.fail(session, lease, WORKER_LOST, utc_now(), max_attempts=1)

    first, second = invoke("admin", "retry", "worker_lost"), invoke("admin", "retry", "worker_lost")

    owners = [line.split()[1] for line in first.stdout.splitlines()]
    assert sorted(owners) == ["ada", "bob"]
    assert first.stderr == "queued again: 2\n"
    assert second.stderr == "queued again: 0\n"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "grasp: the target is an empty folder"),
        (["--set", "method=broken"], "Invalid value for --set: method: 'broken' of broken cannot"),
        (["--kind", "broken"], "Invalid value for --kind: 'broken' of broken cannot be loaded"),
    ],
)
def test_a_broken_package_is_a_warning_until_it_is_asked_for(
    options: list[str], told: str, tmp_path: Path
) -> None:
    about = tmp_path / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    points = "[grasp.methods]\nbroken = broken:METHOD\n[grasp.kinds]\nbroken = broken:KIND\n"
    (about / "entry_points.txt").write_text(points)
    (tmp_path / "broken.py").write_text("raise RuntimeError('no licence')")
    (tmp_path / "a").touch()
    (tmp_path / "t").mkdir()
    root = Path(__file__).parent.parent
    merge = ["merge", "a", "--target", "t", "-a", "x", "-o", "b", *options]

    done = subprocess.run(
        [sys.executable, "-c", "from grasp_cli.main import main; main()", *merge],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{root}", "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == (2 if options else 1)
    warning = "RuntimeWarning: 'broken' of broken cannot be loaded: RuntimeError: no licence"
    assert f"{warning} (repair or uninstall broken)" in done.stderr
    assert told in " ".join(done.stderr.replace("│", "").split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [[], ["models"], ["models", "show"], ["admin", "keys", "list"]])
def test_help_has_a_short_name_everywhere(words: list[str]) -> None:
    short, long = (CliRunner().invoke(cli, [*words, name]) for name in ("-h", "--help"))

    assert short.exit_code == 0
    assert short.output == long.output
