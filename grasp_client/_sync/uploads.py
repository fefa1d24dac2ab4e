# Written by `make client` from grasp_client/_async/uploads.py: change that one.
"""Files on their way to the server: in one request if they are small, and else as uploads in parts
(tus 1.0), so that a cut connection costs little."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from grasp_client import concurrency, files
from grasp_client._sync.records import Collection, Record
from grasp_client.errors import Conflict, GraspError, NotFound
from grasp_client.files import FileBody, Progress, form, sha256_of
from grasp_client.protocol import Retries, given, path

if TYPE_CHECKING:
    from grasp_client._sync.client import Grasp

TUS = {"Tus-Resumable": "1.0.0"}


class Upload(Record):
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


class Uploads(Collection):
    """`client.uploads`; `sources.push` and `targets.create` use it by themselves."""

    def send(
        self,
        path: str | Path,
        *,
        metadata: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Upload:
        """Send a whole file; the upload can then be made into something by its id.

        Goes on with what an earlier, interrupted call has sent of the same.
        """
        file = Path(path)
        about = {"filename": file.name, **(metadata or {})}
        begun = self._begin(file.stat().st_size, about)
        return self._send_rest(begun, file, progress)

    def resume(self, upload: str, path: str | Path, *, progress: Progress | None = None) -> Upload:
        """Go on with an upload of this file that was left unfinished, by whomever."""
        return self._send_rest(self.get(upload), Path(path), progress)

    def get(self, upload: str) -> Upload:
        return self._get(Upload, path("uploads", upload))

    def list(self, *, limit: int | None = None) -> list[Upload]:
        """Those that nothing was made of yet, newest first."""
        return self._list(Upload, "/uploads", limit)

    def delete(self, upload: str) -> None:
        """Throw it away."""
        self._client.ask("DELETE", path("uploads", upload), headers=TUS)

    def _begin(self, size: int, metadata: Mapping[str, str]) -> Upload:
        """One that was begun with the same file and not finished, or a new one.

        Another process may be sending it right now, and make something of it: then it is gone.
        """
        for upload in self.list():
            if upload.size == size and upload.metadata == metadata and "sha256" in metadata:
                return upload
        encoded = {key: b64encode(value.encode()).decode() for key, value in metadata.items()}
        headers = {
            **TUS,
            "Upload-Length": str(size),
            "Upload-Metadata": ",".join(f"{key} {value}" for key, value in encoded.items()),
        }
        answer = self._client.ask("POST", "/uploads", headers=headers)
        return self._read(Upload, answer)

    def _send_rest(self, upload: Upload, file: Path, progress: Progress | None) -> Upload:
        """Part by part; after a cut, from where the server says that it is."""
        retries = Retries(self._client)
        while not upload.finished:
            before = upload.received
            if progress is not None:  # not what was sent in vain, and also what others have sent
                progress(before, upload.size)
            try:
                self._send_part(upload, file, progress)
            except Conflict as error:  # another request is further: ours, before a cut, or not ours
                concurrency.sleep(retries.pause(error, passing=True))
            except GraspError as error:
                concurrency.sleep(retries.pause(error))
            upload = self.get(upload.id)
            if upload.received > before:
                retries.progress()
        return upload

    def _send_part(self, upload: Upload, file: Path, progress: Progress | None) -> None:
        start = upload.received
        stop = min(start + files.PART_BYTES, upload.size)
        body = FileBody(file, start, stop, progress, content_type="application/offset+octet-stream")
        headers = {**TUS, "Upload-Offset": str(start)}
        place = path("uploads", upload.id)
        with self._client.open("PATCH", place, headers=headers, body=body) as response:
            response.read()


class Sent(NamedTuple):
    """What was sent, and what the server said to it."""

    sha256: str
    size: int
    answer: Any


def send(
    client: Grasp,
    place: str,
    file: Path,
    fields: Mapping[str, Any],
    *,
    params: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    made_by_others: Callable[[str], Any] | None = None,
) -> Sent:
    """POST a file and what is said about it; its digest is verified where it arrives.

    `made_by_others` finds by the digest what the server would say, if it has the same already.
    """
    digest = concurrency.run(sha256_of, file)
    size = file.stat().st_size
    said = {**given(**fields), "sha256": digest}
    text = files.as_text(said)
    if files.fits_a_form(size, text):
        body = form(file, text, progress)
        return Sent(digest, size, client.ask("POST", place, params=params, body=body))
    while True:
        upload = client.uploads._begin(size, files.metadata(file, said))
        try:
            client.uploads._send_rest(upload, file, progress)
            made = {**said, "upload": upload.id}
            return Sent(digest, size, client.ask("POST", place, params=params, json=made))
        except NotFound:
            if _is_there(client, upload):
                raise
        # Another process has sent the same file, as the same upload, and made something of it.
        answer = made_by_others(digest) if made_by_others else None
        if answer is not None:
            return Sent(digest, size, answer)


def _is_there(client: Grasp, upload: Upload) -> bool:
    try:
        client.uploads.get(upload.id)
    except NotFound:
        return False
    return True
