from pathlib import Path

import pytest
from pydantic import ValidationError

from registry.process.settings import Settings

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


def test_a_refused_url_does_not_tell_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRASP_DATABASE_URL", "mysql://ada:secret@host/grasp")

    with pytest.raises(ValidationError) as refused:
        Settings()

    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_impossible_port_is_refused(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRASP_PORT", port)

    with pytest.raises(ValidationError, match="port"):
        Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_upload_bytes", "0"),
        ("workers", "-1"),
        ("threads", "0"),
        ("lease_seconds", "0"),
        ("max_attempts", "0"),
        ("max_losses", "0"),
        ("log_format", "xml"),
        ("log_level", "loud"),
        ("database_url", "nonsense"),
        ("database_url", "mysql://host/grasp"),
        ("broker_url", "redis"),
    ],
)
def test_impossible_values_are_refused(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"GRASP_{name.upper()}", value)

    with pytest.raises(ValidationError, match=name):
        Settings()


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ("/data/faces", ["/data/faces"]),
        ("/data/faces,/data/x rays", ["/data/faces", "/data/x rays"]),
        (" /data/faces , /mnt ,", ["/data/faces", "/mnt"]),
        ("", []),
        (" , ", []),
    ],
)
def test_lists_are_separated_by_commas(
    value: str, parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRASP_DATA_ROOTS", value)
    monkeypatch.setenv("GRASP_ALLOWED_HOSTS", value)
    monkeypatch.setenv("GRASP_ALLOWED_BUCKETS", value)

    settings = Settings()

    assert settings.data_roots == tuple(map(Path, parts))
    assert settings.allowed_hosts == settings.allowed_buckets == tuple(parts)


@pytest.mark.parametrize("value", ["/data/a:/data/b", '["/data/a", "/data/b"]', "/data/a,/data/b"])
def test_folders_can_be_listed_in_any_usual_way(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRASP_DATA_ROOTS", value)

    assert Settings().data_roots == (Path("/data/a"), Path("/data/b"))


def test_hosts_keep_their_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRASP_ALLOWED_HOSTS", "models.example.org:8443,other.example.org")

    assert Settings().allowed_hosts == ("models.example.org:8443", "other.example.org")


def test_a_broken_list_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRASP_DATA_ROOTS", '["/data/a"')

    with pytest.raises(ValidationError, match="data_roots"):
        Settings()


def test_lists_can_be_given_in_code() -> None:
    assert Settings(data_roots=(Path("/data"),)).data_roots == (Path("/data"),)


def test_the_database_is_sqlite_in_the_home_wherever_that_is(tmp_path: Path) -> None:
    settings = Settings(home=Path("kept"))

    assert settings.database == f"sqlite:///{tmp_path / 'kept' / 'grasp.db'}"
    assert settings.embedded
    assert Settings(home=Path("/srv/grasp")).database == "sqlite:////srv/grasp/grasp.db"


def test_a_server_is_not_embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql+psycopg://grasp@localhost/grasp"
    monkeypatch.setenv("GRASP_DATABASE_URL", url)

    assert (Settings().database, Settings().embedded) == (url, False)


def test_everything_else_is_kept_below_the_home() -> None:
    settings = Settings(home=Path("/srv/grasp"))

    folders = {settings.blob_folder, settings.work_folder, settings.cache_folder}
    assert {folder.parent for folder in folders} == {settings.home}
    assert len(folders) == 3


def example() -> dict[str, str]:
    lines = (ROOT / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line.startswith("GRASP_"))


def test_example_lists_every_setting_with_its_default() -> None:
    defaults = {name: field.default for name, field in Settings.model_fields.items()}

    assert example() == {
        f"GRASP_{name.upper()}": "" if default in (None, ()) else str(default)
        for name, default in defaults.items()
    }


def test_the_example_as_it_is_changes_nothing() -> None:
    default = Settings()

    Path(".env").write_text((ROOT / ".env.example").read_text())

    assert Settings() == default


def test_the_example_says_what_each_setting_means() -> None:
    for block in (ROOT / ".env.example").read_text().strip().split("\n\n")[1:]:
        *comments, setting = block.splitlines()
        assert setting.startswith("GRASP_")
        assert comments
        assert all(line.startswith("# ") for line in comments)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_plain_postgresql_means_the_driver_we_have(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRASP_DATABASE_URL", f"{scheme}://grasp@localhost/grasp")

    assert Settings().database == "postgresql+psycopg://grasp@localhost/grasp"


def test_a_lease_outlasts_two_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRASP_LEASE_SECONDS", "20")

    with pytest.raises(ValidationError, match="GRASP_HEARTBEAT_SECONDS"):
        Settings()
