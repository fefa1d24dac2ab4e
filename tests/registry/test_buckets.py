"""Whose credentials a bucket is opened with: told by the URLs that it signs."""

from datetime import timedelta
from pathlib import Path

import httpx
import obstore
import pytest

from registry.blobs.base import StorageError
from registry.blobs.buckets import open_bucket

CREDENTIALS = """
[default]
aws_access_key_id = of-default
aws_secret_access_key = secret
[other]
aws_access_key_id = of-other
aws_secret_access_key = secret
"""
CONFIG = """
[default]
region = eu-central-1
[profile other]
region = eu-north-1
[profile bare]
region = eu-west-3
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a user who has profiles, and nothing in the environment."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION", "DEFAULT_REGION", "PROFILE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # no role: nothing to wait for
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(CREDENTIALS)
    (folder / "config").write_text(CONFIG)
    return tmp_path


def signer() -> tuple[str, str]:
    """Key and region that requests are signed with."""
    bucket = open_bucket("bucket", "prefix", None)
    url = httpx.URL(obstore.sign(bucket, "GET", "key", timedelta(minutes=1)))
    key, _, region, *_ = url.params["X-Amz-Credential"].split("/")
    return key, region


def test_the_default_profile_is_found() -> None:
    assert signer() == ("of-default", "eu-central-1")


def test_a_profile_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "other")

    assert signer() == ("of-other", "eu-north-1")


def test_the_files_may_lie_elsewhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = (home / ".aws" / "credentials").rename(home / "elsewhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(moved))

    assert signer() == ("of-default", "eu-central-1")


def test_the_environment_goes_before_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "other")
    monkeypatch.setenv("AWS_REGION", "ap-south-1")
    assert signer() == ("of-other", "ap-south-1")

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert signer() == ("of-environment", "ap-south-1")


def test_a_profile_that_does_not_exist_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "misspelt")

    with pytest.raises(StorageError, match="misspelt") as info:
        open_bucket("bucket", "", None)
    assert "AWS_PROFILE" in str(info.value.hint)


def test_a_profile_without_keys_leaves_them_to_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "bare")

    assert open_bucket("bucket", "", None).credential_provider is None


def test_plain_http_is_accepted_only_where_it_is_asked_for() -> None:
    options = open_bucket("bucket", "", None).client_options
    asked = open_bucket("bucket", "", "http://127.0.0.1:9").client_options

    assert str((options or {}).get("allow_http")).lower() == "false"
    assert str((asked or {}).get("allow_http")).lower() == "true"
