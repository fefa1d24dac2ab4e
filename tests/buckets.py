"""A real HTTP server that speaks S3, in a thread of this process, and a look behind it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import obstore
import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

from registry.blobs.buckets import open_bucket
from registry.blobs.cache import BlobCache
from registry.blobs.s3 import ObjectBlobStore

PREFIX = "some/where"
CACHE_BYTES = 2**30


@contextmanager
def serving_s3() -> Iterator[str]:
    """The endpoint's URL."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"ACCESS_KEY_ID": "me", "SECRET_ACCESS_KEY": "secret"}.items():
            patch.setenv(f"AWS_{name}", value)
        patch.setenv("AWS_REGION", "us-east-1")
        server = ThreadedMotoServer(port=0, verbose=False)
        server.start()
        _, port = server.get_host_and_port()
        yield f"http://127.0.0.1:{port}"
        server.stop()


@dataclass
class Bucket:
    """As its owner sees it, and as nobody but a test can change it."""

    endpoint: str
    name: str

    @classmethod
    def make(cls, endpoint: str) -> "Bucket":
        bucket = cls(endpoint, f"bucket-{uuid4().hex}")
        httpx.put(f"{endpoint}/{bucket.name}").raise_for_status()
        return bucket

    def store(self, folder: Path, max_bytes: int = CACHE_BYTES) -> ObjectBlobStore:
        """For a machine whose disk is `folder`."""
        bucket = open_bucket(self.name, PREFIX, self.endpoint)
        return ObjectBlobStore(bucket, BlobCache(folder, max_bytes), collect_every=0)

    @property
    def _behind(self) -> Any:
        return s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[self.name]

    def objects(self) -> dict[str, bytes]:
        return {key: bytes(found.value) for key, found in self._behind.keys.items()}

    def keys(self, sha256: str) -> list[str]:
        return [key for key in self._behind.keys if f"/{sha256}/" in key]

    def unfinished_uploads(self) -> int:
        return len(self._behind.multiparts)

    def put(self, key: str, data: bytes) -> None:
        obstore.put(open_bucket(self.name, "", self.endpoint), key, data)

    def make_old(self, key: str, seconds: float) -> None:
        self._behind.keys[key].last_modified -= timedelta(seconds=seconds)
