"""A file on its way to the server: in one request if it is small, as an upload if it is large."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from grasp_client.bodies import Progress, form, sha256_of
from grasp_client.errors import GraspError, NotFound
from grasp_client.exchange import ask
from grasp_client.plans import Call, Do, Plan
from grasp_client.uploads import begin_upload, is_there, send_rest

if TYPE_CHECKING:
    from grasp_client.client import AsyncGrasp, Grasp

LARGE_BYTES = 64 * 2**20  # from here on a cut connection should not cost all of it
LONG_FIELD = 16_000  # characters, of the 64 KiB that a field of a form may have
LONG_HEADER = 4096  # characters, of the server's 8192 in base64


class Sent(NamedTuple):
    """What was sent, and what the server said to it."""

    sha256: str
    size: int
    body: Any


def send(
    client: Grasp | AsyncGrasp,
    place: str,
    path: Path,
    fields: Mapping[str, Any],
    *,
    params: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    made_by_others: Callable[[str], Plan[Any]] | None = None,
) -> Plan[Sent]:
    """POST a file and what is said about it; its digest is verified where it arrives.

    `made_by_others` finds by the digest what the server would say, if it has the same already.
    """
    digest: str = yield Do(lambda: sha256_of(path))
    size = path.stat().st_size
    said = {name: value for name, value in fields.items() if value is not None}
    said["sha256"] = digest
    text = _as_text(said)
    if size < LARGE_BYTES and max(map(len, text.values())) < LONG_FIELD:
        call = Call("POST", place, params=params or {}, body=form(path, text, progress))
        return Sent(digest, size, (yield from ask(client, call)).json())
    while True:
        upload = yield from begin_upload(client, size, _metadata(path, said))
        try:
            yield from send_rest(client, upload, path, progress)
            call = Call("POST", place, params=params or {}, json={**said, "upload": upload.id})
            return Sent(digest, size, (yield from ask(client, call)).json())
        except NotFound:
            if (yield from is_there(client, upload)):
                raise
        # Another process has sent the same file, as the same upload, and made something of it.
        made = (yield from made_by_others(digest)) if made_by_others else None
        if made is not None:
            return Sent(digest, size, made)


def _metadata(path: Path, said: Mapping[str, Any]) -> dict[str, str]:
    """What an upload says of itself: by a `model`, another's checkpoint is refused at once."""
    about = {"filename": path.name, "sha256": said["sha256"]}
    checked = _as_text({name: said[name] for name in ("model", "classes") if name in said})
    return about | checked if sum(map(len, checked.values())) < LONG_HEADER else about


def _as_text(fields: Mapping[str, Any]) -> dict[str, str]:
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in fields.items()}


def existing_file(path: str | Path) -> Path:
    """Raises GraspError, and not only after the server was asked for something."""
    if not Path(path).is_file():
        raise GraspError(f"there is no file {str(path)!r}")
    return Path(path)
