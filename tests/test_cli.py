from importlib.metadata import entry_points, version
from typing import Any

import pytest
import uvicorn
from typer.testing import CliRunner

from grasp_client.cli import cli, main

pytestmark = pytest.mark.usefixtures("no_settings")

Started = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """What uvicorn was asked to run, instead of running it."""
    calls: Started = []
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: calls.append((app, options)))
    return calls


def test_version() -> None:
    result = CliRunner().invoke(cli, ["version"])

    assert result.exit_code == 0
    assert result.stdout.strip() == version("grasp-merge")


def test_script_is_installed() -> None:
    [script] = entry_points(group="console_scripts", name="grasp")

    assert script.load() is main


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_serve_listens_on_loopback(
    host: str, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRASP_HOST", host)
    monkeypatch.setenv("GRASP_PORT", "8123")

    result = CliRunner().invoke(cli, ["serve"])

    assert result.exit_code == 0
    assert started == [("app.main:app", {"host": host, "port": 8123})]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", "localhost.evil"])
def test_serve_refuses_any_other_address(
    host: str, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRASP_HOST", host)

    result = CliRunner().invoke(cli, ["serve"])

    assert result.exit_code == 2
    assert f"refusing to listen on {host}" in result.stderr
    assert started == []


def test_serve_names_the_setting_that_is_wrong(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRASP_PORT", "http")

    result = CliRunner().invoke(cli, ["serve"])

    assert result.exit_code == 2
    assert "GRASP_PORT: " in result.stderr
    assert started == []
