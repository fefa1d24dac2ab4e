"""`grasp serve`: the API, and beside it the workers that end with it."""

import signal
import socket

import uvicorn
from sqlalchemy.exc import DatabaseError

from app.auth import is_loopback
from app.connections import BoundedProtocol
from registry.database import Database
from registry.keys import any_keys
from registry.logs import configure_logs, get_log
from registry.processes import Workers
from registry.settings import Settings

LISTEN_BACKLOG = 2048

log = get_log(__name__)


class Refused(Exception):
    """The service does not start; the message says what to do."""


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises Refused."""
    configure_logs(settings)
    try:
        _look_at_database(settings)
    except (OSError, DatabaseError) as error:
        raise _unusable(settings, error) from error
    with _listen(settings) as listener:
        _serve(settings, listener)


def _serve(settings: Settings, listener: socket.socket) -> None:
    config = uvicorn.Config(
        "app.main:app",
        http=BoundedProtocol,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,  # streams and long polls have no end of their own
        server_header=False,
    )
    server = uvicorn.Server(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises them again once it has ended; dying of that would leave workers behind.
        signal.signal(number, server.handle_exit)
    host, port = listener.getsockname()[:2]
    with Workers([{}] * settings.workers):
        log.info("serving", url=f"http://{host}:{port}", home=str(settings.home.absolute()))
        server.run(sockets=[listener])


def _look_at_database(settings: Settings) -> None:
    database = Database(settings.database)
    try:
        if settings.embedded:
            database.migrate()
        _require_keys(settings, database)
    finally:
        database.close()


def _unusable(settings: Settings, error: OSError | DatabaseError) -> Refused:
    reason = error.orig if isinstance(error, DatabaseError) else error
    if settings.database_url is None:
        hint = f"It is kept in {settings.home.absolute()}: GRASP_HOME chooses another folder."
    else:
        hint = "GRASP_DATABASE_URL says where it is."
    return Refused(f"the database cannot be used: {reason}.\n{hint}")


def _require_keys(settings: Settings, database: Database) -> None:
    if is_loopback(settings.host):
        return
    with database.read() as session:
        if any_keys(session):
            return
    raise Refused(
        f"refusing to listen on {settings.host}: there are no API keys, so anyone who reaches that"
        " address could use the service.\nMake one with `grasp admin keys create --owner NAME"
        " --scope admin`, or set GRASP_HOST to 127.0.0.1."
    )


def _listen(settings: Settings) -> socket.socket:
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(LISTEN_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise Refused(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}.\n"
            "Is the service running already? GRASP_PORT chooses another port."
        ) from error
    return listener
