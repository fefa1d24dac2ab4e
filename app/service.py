"""What every request needs, opened once per process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from app.fetching.fetch import FetchPolicy
from app.http.turns import Turns
from registry.blobs import open_store
from registry.blobs.base import BlobDamaged, BlobMissing, BlobStore
from registry.blobs.damage import note_problem, problem_of
from registry.blobs.integrity import Verifier
from registry.database import Database
from registry.jobs.bell import open_bell
from registry.jobs.transitions import Failure
from registry.models import find_holds
from registry.process.home import open_home
from registry.process.settings import Settings
from registry.tables import Model, utc_now


class Service:
    """The database, the blobs and the settings of this process."""

    def __init__(self, settings: Settings) -> None:
        open_home(settings)
        self.settings = settings
        self.database = Database(
            settings.database, open_bell(settings.broker_url), pool=settings.database_pool
        )
        self.store: BlobStore = open_store(settings)
        self.verifier = Verifier()
        self.turns = Turns()
        self.fetching = FetchPolicy(
            data_roots=settings.data_roots,
            allowed_hosts=settings.allowed_hosts,
            allowed_buckets=settings.allowed_buckets,
            s3_endpoint=settings.blob_endpoint,
        )

    @contextmanager
    def noting(self, sha256: str) -> Iterator[None]:
        """Whoever reads a blob inside, and finds it damaged or missing, notes it for all."""
        try:
            yield
        except (BlobDamaged, BlobMissing) as error:
            with suppress(DBAPIError), self.database.write() as session:
                note_problem(session, sha256, problem_of(error), utc_now())
            raise

    def find_holds(self, session: Session, models: Sequence[Model]) -> dict[str, Failure]:
        """By id, why the jobs of these models wait, where they do."""
        return find_holds(session, models, self.settings.lease_seconds)

    def close(self) -> None:
        self.database.close()


def get_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDep = Annotated[Service, Depends(get_service)]
