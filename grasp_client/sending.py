"""A file on its way to the server: in one request if it is small, as an upload if it is large."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from grasp_client.bodies import Progress, form, sha256_of
from grasp_client.errors import GraspError
from grasp_client.exchange import Answer, ask
from grasp_client.plans import Call, Do, Plan
from grasp_client.uploads import send_file

if TYPE_CHECKING:
    from grasp_client.client import AsyncGrasp, Grasp

LARGE_BYTES = 64 * 2**20  # from here on a cut connection should not cost all of it
LONG_FIELD = 16_000  # characters, of the 64 KiB that a field of a form may have
LONG_HEADER = 4096  # characters, of the server's 8192 in base64


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
    size = path.stat().st_size
    said = {name: value for name, value in fields.items() if value is not None}
    said["sha256"] = digest
    text = _as_text(said)
    if size < LARGE_BYTES and max(map(len, text.values())) < LONG_FIELD:
        body = form(path, text, progress)
        answer = yield from ask(client, Call("POST", place, params=params or {}, body=body))
        return Sent(digest, size, answer)
    upload = yield from send_file(client, path, _metadata(path, said), progress)
    named = {**said, "upload": upload.id}
    answer = yield from ask(client, Call("POST", place, params=params or {}, json=named))
    return Sent(digest, size, answer)


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
