"""What every request needs, opened once per process."""

from typing import Annotated

from fastapi import Depends, Request

from app.fetching import FetchPolicy
from registry.bell import open_bell
from registry.blobs import BlobStore
from registry.database import Database
from registry.integrity import Verifier
from registry.settings import Settings
from registry.storage import open_store


class Service:
    """The database, the blobs and the settings of this process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = Database(
            settings.database, open_bell(settings.broker_url), pool=settings.database_pool
        )
        self.store: BlobStore = open_store(settings)
        self.verifier = Verifier()
        self.fetching = FetchPolicy(
            data_roots=settings.data_roots,
            allowed_hosts=settings.allowed_hosts,
            allowed_buckets=settings.allowed_buckets,
            s3_endpoint=settings.blob_endpoint,
        )

    def start(self) -> None:
        if self.settings.embedded:
            self.database.migrate()

    def close(self) -> None:
        self.database.close()


def get_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDep = Annotated[Service, Depends(get_service)]
