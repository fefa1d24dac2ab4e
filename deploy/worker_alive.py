"""Health check of a worker container: has a worker on this host been heard of lately?

Exits with 1 only if the database answers and knows of none. One that does not answer is no fault
of the worker's, and restarting would cost it the fold that it runs.
"""

import socket
import sys
from datetime import timedelta

from sqlalchemy.exc import SQLAlchemyError

from registry.database import Database
from registry.jobs.workers import list_workers
from registry.process.settings import Settings
from registry.tables import utc_now


def is_alive(database: Database, host: str, lease_seconds: float) -> bool:
    """Whether a worker on `host` was seen within the time after which it would lose its job."""
    since = utc_now() - timedelta(seconds=lease_seconds)
    with database.read() as session:
        return any(each.host == host and each.seen_at > since for each in list_workers(session))


def main() -> int:
    settings = Settings()
    database = Database(settings.database)
    try:
        alive = is_alive(database, socket.gethostname(), settings.lease_seconds)
    except SQLAlchemyError as error:
        sys.stderr.write(f"cannot tell: the database does not answer ({type(error).__name__})\n")
        return 0
    finally:
        database.close()
    if not alive:
        sys.stderr.write("no worker on this host was heard of lately\n")
    return 0 if alive else 1


if __name__ == "__main__":
    sys.exit(main())
