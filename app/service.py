"""What every request needs, opened once per process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, TypeVar, TypeVarTuple

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Request
from sqlalchemy.exc import DBAPIError

from app.fetching import FetchPolicy
from grasp_core.errors import GraspError
from registry.bell import open_bell
from registry.blobs import BlobDamaged, BlobMissing, BlobStore
from registry.damage import note_problem, problem_of
from registry.database import Database
from registry.home import open_home
from registry.integrity import Verifier
from registry.settings import Settings
from registry.storage import open_store
from registry.tables import utc_now

MAX_WAITING = 16  # a megabyte each

T = TypeVar("T")
Args = TypeVarTuple("Args")


class Busy(GraspError):
    """Refused, though not for what it is."""

    code = "unavailable"


class Turns:
    """Threads for what strangers can make large: few at once, so that their memory has an end.

    What takes long is done one by one: two at once would take as long, and twice the memory. It
    keeps neither what is short nor other requests from their threads.
    """

    def __init__(self) -> None:
        self._long, self._short = CapacityLimiter(1), CapacityLimiter(4)
        self._waiting = 0

    @contextmanager
    def room(self) -> Iterator[None]:
        """For something large that waits for its turn. Raises Busy where many do."""
        if self._waiting >= MAX_WAITING:
            raise Busy("too many large requests at once", hint="try again in a while")
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def run(self, takes_long: bool, do: Callable[[*Args], T], *args: *Args) -> T:
        limiter = self._long if takes_long else self._short
        return await to_thread.run_sync(do, *args, limiter=limiter)


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
        """Whoever reads a blob inside, and finds it damaged or missing, tells all others."""
        try:
            yield
        except (BlobDamaged, BlobMissing) as error:
            with suppress(DBAPIError), self.database.write() as session:
                note_problem(session, sha256, problem_of(error), utc_now())
            raise

    def start(self) -> None:
        if self.settings.embedded:
            self.database.migrate()

    def close(self) -> None:
        self.database.close()


def get_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDep = Annotated[Service, Depends(get_service)]
