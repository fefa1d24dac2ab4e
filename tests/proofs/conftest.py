"""Real servers, started by the tests themselves: PostgreSQL, Redis, and one that speaks S3."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.buckets import Bucket, serving_s3
from tests.proofs.cluster import Cluster
from tests.servers import Postgres, Redis, serving_postgres

LOOK_S = 1.0  # so that what a lost ring left is found within a test
_numbers = itertools.count()

MakeCluster = Callable[..., Cluster]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with serving_postgres() as server:
        yield server


@pytest.fixture
def database_url(postgres: Postgres) -> str:
    return postgres.make_database(f"proof{next(_numbers)}")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    server = Redis(tmp_path)
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Not for longer: while it runs, its key is in the environment."""
    with serving_s3() as endpoint:
        yield endpoint


@pytest.fixture
def stored(s3: str) -> Bucket:
    return Bucket.make(s3)


@pytest.fixture
def bucket(stored: Bucket) -> dict[str, Any]:
    """Settings that keep the blobs in a bucket of their own."""
    return {"blob_url": f"s3://{stored.name}/blobs", "blob_endpoint": stored.endpoint}


@pytest.fixture
def make_cluster(
    no_settings: None,
    tmp_path: Path,
    database_url: str,
    redis: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> MakeCluster:
    """Of this test's database and broker."""
    monkeypatch.setenv("PROOF_LOOK_S", str(LOOK_S))

    def make(**options: Any) -> Cluster:
        servers = {"database_url": database_url, "broker_url": redis.url}
        return Cluster(tmp_path / f"cluster{next(_numbers)}", **servers | options)

    return make
