"""Uploads: large files in parts (tus 1.0), so that a cut connection costs little."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from grasp_client.bodies import FileBody, Progress
from grasp_client.errors import Conflict, GraspError, NotFound
from grasp_client.exchange import Tries, ask, open_response, read_rest
from grasp_client.plans import Bound, C, Call, Plan, at, operation
from grasp_client.records import Record, get, list_all, read

PART_BYTES = 32 * 2**20  # per request; a cut costs less, as the server keeps what had arrived
TUS = {"Tus-Resumable": "1.0.0"}


class Upload(Record[C]):
    """Bytes that have arrived, or some of them, and of which nothing was made yet."""

    id: str
    size: int
    received: int
    metadata: dict[str, str]
    created_at: datetime
    expires_at: datetime

    @property
    def finished(self) -> bool:
        return self.received == self.size


class Uploads(Bound[C]):
    """`client.uploads`; `sources.push` and `targets.create` use it by themselves."""

    def __init__(self, client: C) -> None:
        self._client = client

    @operation
    def send(
        self,
        path: str | Path,
        *,
        metadata: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Plan[Upload[C]]:
        """Send a whole file; the upload can then be made into something by its id."""
        path = Path(path)
        given = {"filename": path.name, **(metadata or {})}
        return send_file(self._client, path, given, progress)

    @operation
    def resume(
        self, upload: str, path: str | Path, *, progress: Progress | None = None
    ) -> Plan[Upload[C]]:
        """Go on with an upload of this file that was left unfinished, by whomever."""
        begun = yield from get_upload(self._client, upload)
        return (yield from send_rest(self._client, begun, Path(path), progress))

    @operation
    def get(self, upload: str) -> Plan[Upload[C]]:
        return get_upload(self._client, upload)

    @operation
    def list(self, *, limit: int | None = None) -> Plan[list[Upload[C]]]:
        """Those that nothing was made of yet, newest first."""
        return list_all(Upload, self._client, "/uploads", limit, {})

    @operation
    def delete(self, upload: str) -> Plan[None]:
        """Throw it away."""
        yield from ask(self._client, Call("DELETE", at("uploads", upload), headers=TUS))


def get_upload(client: C, upload: str) -> Plan[Upload[C]]:
    return get(Upload, client, at("uploads", upload))


def send_file(
    client: C, path: Path, metadata: Mapping[str, str], progress: Progress | None
) -> Plan[Upload[C]]:
    """All of a file; goes on with what an earlier, interrupted call has sent of the same."""
    upload = yield from begin_upload(client, path.stat().st_size, metadata)
    return (yield from send_rest(client, upload, path, progress))


def begin_upload(client: C, size: int, metadata: Mapping[str, str]) -> Plan[Upload[C]]:
    """One that was begun with the same file and not finished, or a new one.

    Another process may be sending it right now, and make something of it: then it is gone.
    """
    begun = yield from list_all(Upload, client, "/uploads", None, {})
    for upload in begun:
        if upload.size == size and upload.metadata == metadata and "sha256" in metadata:
            return upload
    return (yield from _create(client, size, metadata))


def is_there(client: C, upload: Upload[C]) -> Plan[bool]:
    try:
        yield from get_upload(client, upload.id)
    except NotFound:
        return False
    return True


def _create(client: C, size: int, metadata: Mapping[str, str]) -> Plan[Upload[C]]:
    headers = {
        **TUS,
        "Upload-Length": str(size),
        "Upload-Metadata": ",".join(
            f"{key} {b64encode(value.encode()).decode()}" for key, value in metadata.items()
        ),
    }
    answer = yield from ask(client, Call("POST", "/uploads", headers=headers))
    return read(Upload, client, answer.json())


def send_rest(
    client: C, upload: Upload[C], path: Path, progress: Progress | None
) -> Plan[Upload[C]]:
    """Part by part; after a cut, from where the server says that it is."""
    tries = Tries(client)
    while not upload.finished:
        before = upload.received
        if progress is not None:  # not what was sent in vain, and also what others have sent
            progress(before, upload.size)
        try:
            yield from _send_part(client, upload, path, progress)
        except Conflict as error:  # another request is further: of ours, before a cut, or not ours
            yield from tries.pause(error, passing=True)
        except GraspError as error:
            yield from tries.pause(error)
        upload = yield from get_upload(client, upload.id)
        if upload.received > before:
            tries.progress()
    return upload


def _send_part(client: C, upload: Upload[C], path: Path, progress: Progress | None) -> Plan[None]:
    start = upload.received
    stop = min(start + PART_BYTES, upload.size)
    body = FileBody(path, start, stop, progress, content_type="application/offset+octet-stream")
    headers = {**TUS, "Upload-Offset": str(start)}
    call = Call("PATCH", at("uploads", upload.id), headers=headers, body=body)
    yield from open_response(client, call)
    yield from read_rest(client)
