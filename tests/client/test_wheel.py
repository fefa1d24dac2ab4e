"""The client as a training environment gets it: from the wheel, with what that brings, alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.app.world import Server, World, checkpoint
from tests.client.hand import working

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
UV = Path(sys.executable).with_name("uv")
OURS = {"grasp_client", "grasp_cli", "grasp_core"}
SERVICE = {"app", "registry", "worker", "migrations"}
NOT_LIGHT = {
    *("alembic", "boto3", "botocore", "celery", "fastapi", "obstore", "psycopg", "redis"),
    *("sqlalchemy", "starlette", "structlog", "uvicorn", "numpy", "PIL", "timm", "torch"),
}
NO_REGISTRY = ("network was disabled", "Failed to fetch", "Request failed", "dns error")
PUSH = """
from grasp_client import Grasp
with Grasp() as g:
    source = g.sources.push("site-b.safetensors", model="merged")
    print(source.job.wait().version, g.models.pull("merged", "merged.safetensors"))
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--wheel", "--offline", "--no-build-isolation", "--python", sys.executable)
    subprocess.run([UV, "build", "--quiet", *options, "--out-dir", folder, ROOT], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def training(wheel: Path) -> Path:
    """An environment that has the wheel, and of other packages those that it asks for."""
    folder = wheel.parent / "environment"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    install: list[str | Path] = [UV, "pip", "install", "--quiet", "--python", folder, wheel]
    for how in (["--offline"], []):  # from uv's cache if all is there
        command = [*install, *how, "--constraints", ROOT / "requirements.lock"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return folder / "bin"
    if any(reason in done.stderr for reason in NO_REGISTRY):
        pytest.skip("needs a package registry, or what the client depends on in uv's cache")
    raise AssertionError(done.stderr)


def run(
    program: Path, *arguments: str, environment: dict[str, str] | None = None, expect: int = 0
) -> subprocess.CompletedProcess[str]:
    """In the current folder, with none of our variables."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    done = subprocess.run(
        [program, *arguments], env=kept | (environment or {}), capture_output=True, text=True
    )
    assert done.returncode == expect, done.stderr
    return done


def test_it_has_the_client_and_the_core_and_nothing_of_the_service(wheel: Path) -> None:
    with ZipFile(wheel) as file:
        top = {name.partition("/")[0] for name in file.namelist()}

        names = file.read("grasp_core/kinds/image/names.txt").decode().split()

    assert {name for name in top if not name.endswith(".dist-info")} == OURS
    assert "resnet18" in names


def test_what_it_brings_is_light(training: Path) -> None:
    code = f"""
import importlib.util, importlib.metadata as metadata, json
names = [each.metadata["Name"].lower() for each in metadata.distributions()]
found = [name for name in {sorted(OURS | SERVICE | NOT_LIGHT)} if importlib.util.find_spec(name)]
print(json.dumps([names, found]))
"""
    installed, importable = json.loads(run(training / "python", "-P", "-c", code).stdout)

    assert set(importable) == OURS
    assert len(installed) < 30
    extras = [each for extra in PROJECT["optional-dependencies"].values() for each in extra]
    optional = {each.partition(">")[0].partition("[")[0] for each in extras} - {PROJECT["name"]}
    assert optional & set(installed) == set()


@pytest.mark.usefixtures("no_settings")
def test_it_pushes_a_source_and_pulls_the_model(
    training: Path, server: Server, world: World
) -> None:
    world.ready_model()
    for number, site in enumerate("ab"):
        Path(f"site-{site}.safetensors").write_bytes(checkpoint(number))

    with working(world):
        at = {"GRASP_URL": server.url, "GRASP_HOME": str(world.settings.home)}
        pushed = run(
            training / "grasp", "push", "merged", "site-a.safetensors", "--wait", environment=at
        )
        result = run(training / "python", "-P", "-c", PUSH, environment=at)
    pulled = run(training / "grasp", "pull", "merged", "--json", environment=at)

    assert "version 1" in pushed.stdout
    assert result.stdout.split() == ["2", "merged.safetensors"]
    merged = world.client.get("/models/merged").content
    assert Path("merged.safetensors").read_bytes() == merged
    assert Path(json.loads(pulled.stdout)["path"]).read_bytes() == merged


@pytest.mark.parametrize("command", ["serve", "worker", "admin migrate", "admin keys list"])
@pytest.mark.usefixtures("no_settings")
def test_the_service_is_elsewhere(training: Path, command: str) -> None:
    done = run(training / "grasp", *command.split(), expect=2)

    assert done.stderr.startswith("grasp: the service is not installed here, only its client\n")


@pytest.mark.usefixtures("no_settings")
def test_merging_here_needs_torch(training: Path) -> None:
    Path("site-a.pt").touch()

    done = run(training / "grasp", "convert", "site-a.pt", expect=1)

    assert "py3-none-any.whl[torch]'`" in done.stderr
