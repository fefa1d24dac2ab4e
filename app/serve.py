"""`grasp serve`: the API, and beside it the workers that end with it."""

import ctypes
import resource
import signal
import socket
import sys
from contextlib import ExitStack
from functools import partial

import uvicorn
from fastapi import FastAPI

from app.access.auth import is_loopback
from app.access.peers import can_recognise
from app.access.tokens import token
from app.http.connections import RESERVE, BoundedProtocol, Connections, Limits
from app.main import create_app
from app.service import Service
from app.startup import Refused
from registry.errors import NotReady
from registry.keys import any_keys
from registry.process.home import lock_home, open_home, write_address
from registry.process.logs import configure_logs, get_log
from registry.process.processes import Workers
from registry.process.settings import Settings

LISTEN_BACKLOG = 2048
FILES = 96  # open besides connections and what they send or receive: database, log, libraries

M_ARENA_MAX = -8  # of malloc.h

log = get_log(__name__)


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises Refused."""
    configure_logs(settings)
    _share_freed_memory()
    with ExitStack() as stack:
        try:
            open_home(settings)
            stack.enter_context(lock_home(settings))
        except OSError as error:
            raise _unusable_home(settings, error) from error
        listener = stack.enter_context(_listen(settings))
        app = create_app(settings, partial(_admit, listener, stack))
        _run(settings, app, listener)
        _raise_refusal(settings, app.state.startup.error)


def _run(settings: Settings, app: FastAPI, listener: socket.socket) -> None:
    connections = Connections(_allowed(Limits.of(settings)))
    config = uvicorn.Config(
        app,
        http=partial(BoundedProtocol, connections=connections),  # type: ignore[arg-type]
        ws="none",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=6,  # longer than connections take to end what is under way
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
    )
    server = uvicorn.Server(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises them again once it has ended; dying of that would leave workers behind.
        signal.signal(number, server.handle_exit)
    server.run(sockets=[listener])


def _admit(listener: socket.socket, stack: ExitStack, service: Service) -> None:
    """Now that it is known whether there are keys: start to work, or raise Refused."""
    settings, url = service.settings, _url(listener)
    with service.database.read() as session:
        keys = any_keys(session)
    if not (keys or is_loopback(settings.host)):
        raise Refused(
            f"refusing to listen on {settings.host}: there are no API keys, so anyone who reaches"
            " that address could use the service.\nMake one with `grasp admin keys create --owner"
            " NAME --scope admin`, or set GRASP_HOST to 127.0.0.1."
        )
    secret = None if keys else stack.enter_context(token(settings))
    stack.enter_context(write_address(settings, _url_from_here(listener)))
    stack.enter_context(Workers([{}] * settings.workers))
    log.info("serving", url=url, home=str(settings.home.absolute()))
    if secret and not settings.open and not can_recognise():
        _tell_of_token(settings, url, secret)


def _raise_refusal(settings: Settings, error: Exception | None) -> None:
    """What kept the service from starting, in words."""
    match error:
        case None:
            return
        case NotReady() if settings.database_url is None:
            folder = settings.home.absolute()
            hint = f"It is kept in {folder}: --home or GRASP_HOME chooses another folder."
        case NotReady():
            hint = "GRASP_DATABASE_URL says where it is."
        case OSError():
            raise _unusable_home(settings, error) from error
        case _:
            raise error
    raise Refused(f"{error}.\n{hint}") from error


def _unusable_home(settings: Settings, error: OSError) -> Refused:
    if isinstance(error, BlockingIOError):
        return Refused(
            f"another `grasp serve` runs in {settings.home.absolute()}.\n"
            "--home or GRASP_HOME chooses another folder."
        )
    return Refused(
        f"{error.filename} cannot be used: {error.strerror}.\n"
        "--home or GRASP_HOME chooses another folder."
    )


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _url_from_here(listener: socket.socket) -> str:
    """Who listens everywhere is reached on loopback."""
    return _url(listener).replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _tell_of_token(settings: Settings, url: str, secret: str) -> None:
    """For a browser: where the user cannot be recognised. Not into a log that others may read."""
    if sys.stderr.isatty():
        log.info("sign in once in your browser", at=f"{url}/ui/login?token={secret}")
    else:
        log.info("the token is needed to sign in", token=str(settings.token_file.absolute()))


def _share_freed_memory() -> None:
    """What one thread has freed is there for others (glibc): by default malloc keeps it apart, for
    eight times as many threads as there are cores."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_ARENA_MAX, 2)


def _allowed(limits: Limits) -> Limits:
    """With as many connections as files can be open: each may send or receive another file."""
    needed = 2 * limits.connections + RESERVE + FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return limits
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed == needed:
        return limits
    fewer = max(1, (allowed - RESERVE - FILES) // 2)
    log.warning(
        "this process may open few files, so it serves fewer connections than"
        " GRASP_MAX_CONNECTIONS: raise its limit (ulimit -n, or LimitNOFILE of a unit)",
        files=allowed,
        connections=fewer,
    )
    return limits._replace(connections=fewer)


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
            "Is the service running already? --port or GRASP_PORT chooses another port."
        ) from error
    return listener
