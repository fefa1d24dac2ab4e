"""A file on its way to the server: in one request if it is small, as an upload if it is large."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from grasp_client.bodies import FileBody, Progress, sha256_of
from grasp_client.errors import GraspError
from grasp_client.exchange import Answer, ask
from grasp_client.plans import Call, Do, Plan
from grasp_client.uploads import send_file

if TYPE_CHECKING:
    from grasp_client.client import AsyncGrasp, Grasp

LARGE_BYTES = 64 * 2**20  # from here on a cut connection should not cost all of it
LONG_FIELDS = 4096  # characters; longer ones do not fit into the first line of a request


class Sent(NamedTuple):
    """What was sent, and what the server said to it."""

    sha256: str
    size: int
    answer: Answer


def send(
    client: Grasp | AsyncGrasp,
    place: str,
    path: Path,
    fields: Mapping[str, Any],
    *,
    params: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Plan[Sent]:
    """POST a file and what is said about it; its digest is verified where it arrives."""
    digest: str = yield Do(lambda: sha256_of(path))
    said = {name: value for name, value in fields.items() if value is not None}
    said["sha256"] = digest
    written = {k: v if isinstance(v, str) else json.dumps(v) for k, v in said.items()}
    brief = sum(map(len, written.values())) < LONG_FIELDS
    size = path.stat().st_size
    if size < LARGE_BYTES and brief:
        body = FileBody(path, 0, size, progress)
        sent = {"Content-Type": "application/octet-stream"}
        call = Call("POST", place, params={**written, **(params or {})}, headers=sent, body=body)
        return Sent(digest, size, (yield from ask(client, call)))
    metadata = {"filename": path.name, "sha256": digest}
    if brief:  # so that a checkpoint of another model is refused by its first bytes
        metadata |= {k: v for k, v in written.items() if k in ("model", "classes")}
    upload = yield from send_file(client, path, metadata, progress)
    call = Call("POST", place, params=params or {}, json={**said, "upload": upload.id})
    return Sent(digest, size, (yield from ask(client, call)))


def existing_file(path: str | Path) -> Path:
    """Raises GraspError, and not only after the server was asked for something."""
    if not Path(path).is_file():
        raise GraspError(f"there is no file {str(path)!r}")
    return Path(path)
