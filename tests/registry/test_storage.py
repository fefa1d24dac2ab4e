"""Where the settings say that blobs are kept."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from registry.blobs import open_store
from registry.blobs.local import LocalBlobStore
from registry.blobs.s3 import ObjectBlobStore
from registry.process.settings import Settings
from tests.buckets import Bucket, serving_s3

pytestmark = pytest.mark.usefixtures("no_settings")


def test_a_folder_in_the_home_is_the_default(tmp_path: Path) -> None:
    store = open_store(Settings(home=tmp_path / "home"))

    assert isinstance(store, LocalBlobStore)
    assert store.root == tmp_path / "home" / "blobs"


def test_any_folder_can_be_named(tmp_path: Path) -> None:
    store = open_store(Settings(blob_url=f"file://{tmp_path}/with%20space"))

    assert isinstance(store, LocalBlobStore)
    assert store.root == tmp_path / "with space"
    assert store.sign("a" * 64, 60) is None


def test_a_bucket_can_be_named(tmp_path: Path) -> None:
    with serving_s3() as endpoint:
        bucket = Bucket.make(endpoint)
        url = f"s3://{bucket.name}/a/prefix"
        store = open_store(Settings(home=Path("home"), blob_url=url, blob_endpoint=endpoint))
        with store.create() as writer:
            writer.write(b"data")
            name = writer.commit().sha256

        assert isinstance(store, ObjectBlobStore)
        [key] = bucket.objects()
        assert key.startswith(f"a/prefix/{name[:2]}/{name}/")
        assert tmp_path / "home" / "blob_cache" in store.fetch(name).parents


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("blob_url", "/srv/blobs"),
        ("blob_url", "file://srv/blobs"),
        ("blob_url", "file:blobs"),
        ("blob_url", "s3://"),
        ("blob_url", "s3:///prefix"),
        ("blob_url", "s3://key:secret@bucket/prefix"),
        ("blob_url", "s3://bucket/prefix?region=eu"),
        ("blob_url", "https://bucket.s3.amazonaws.com"),
        ("blob_endpoint", "minio:9000"),
        ("blob_endpoint", "ftp://minio"),
        ("blob_endpoint", "https://"),
        ("blob_endpoint", "https://key:secret@minio"),
        ("blob_cache_bytes", "0"),
    ],
)
def test_what_makes_no_sense_is_refused(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"GRASP_{name.upper()}", value)

    with pytest.raises(ValidationError, match=name):
        Settings()
