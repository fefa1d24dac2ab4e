from pathlib import Path

import pytest
from pydantic import ValidationError

from registry.settings import Settings

pytestmark = pytest.mark.usefixtures("no_settings")

ROOT = Path(__file__).parent.parent


def test_defaults() -> None:
    settings = Settings()

    assert settings.home == Path(".grasp")
    assert settings.host == "127.0.0.1"
    assert settings.port == 8000


def test_environment_wins_over_env_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("GRASP_HOME=/srv/grasp\nGRASP_PORT=1111\n")
    monkeypatch.setenv("GRASP_PORT", "2222")

    settings = Settings()

    assert settings.home == Path("/srv/grasp")
    assert settings.port == 2222


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_impossible_port_is_refused(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRASP_PORT", port)

    with pytest.raises(ValidationError, match="port"):
        Settings()


def test_example_lists_every_setting_with_its_default() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    example = dict(line.split("=", 1) for line in lines if line.startswith("GRASP_"))

    assert example == {
        f"GRASP_{name.upper()}": str(field.default) for name, field in Settings.model_fields.items()
    }
