"""tus 1.0.0, the protocol of uploads in parts (https://tus.io), as far as it is headers.

GraspError
├── UnsupportedTus          412: a client that speaks another version
├── UnsupportedMediaType    415: bytes that are not announced as tus wants it
├── InvalidChecksum         400: an Upload-Checksum that cannot be verified
└── ChecksumMismatch        460: one that does not hold
"""

import base64
import binascii
import hashlib
from typing import Annotated

from fastapi import Depends, Header
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.auth import CallerDep
from grasp_core.errors import GraspError
from registry.errors import Unusable

PATH = "/uploads"
VERSION = "1.0.0"
EXTENSIONS = "creation,creation-with-upload,expiration,checksum,termination"
ALGORITHMS = ("sha256", "sha1")
MEDIA_TYPE = "application/offset+octet-stream"
# Clients that are generated from the OpenAPI document know no such type; to them it is just bytes.
MEDIA_TYPES = (MEDIA_TYPE, "application/octet-stream")
OVERRIDE = "x-http-method-override"


class UnsupportedTus(GraspError):
    code = "unsupported_tus"


class UnsupportedMediaType(GraspError):
    code = "unsupported_media_type"


class InvalidChecksum(GraspError):
    code = "invalid_checksum"


class ChecksumMismatch(GraspError):
    code = "checksum_mismatch"


class TusHeaders:
    """Around everything below /uploads: each answer says which version is spoken, and a POST may
    stand for another method, for clients that know no PATCH."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not f"{scope['path']}/".startswith(f"{PATH}/"):
            await self.app(scope, receive, send)
            return

        async def send_with_version(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Tus-Resumable"] = headers["Tus-Version"] = VERSION
            await send(message)

        meant = Headers(scope=scope).get(OVERRIDE) if scope["method"] == "POST" else None
        scope = {**scope, "method": meant.upper()} if meant else scope
        await self.app(scope, receive, send_with_version)


def require_version(
    _caller: CallerDep,
    tus_resumable: Annotated[
        str | None,
        Header(
            description=f"The version of tus that you speak: {VERSION}.",
            json_schema_extra={"const": VERSION},
        ),
    ] = None,
) -> None:
    """Raises UnsupportedTus; whoever names no version is taken at their word."""
    if tus_resumable not in (None, VERSION):
        raise UnsupportedTus(
            f"this server speaks tus {VERSION}, not {tus_resumable[:20]!r}",
            hint=f"send Tus-Resumable: {VERSION}",
        )


VersionChecked = Depends(require_version)


class Checksum:
    """What Upload-Checksum says of a request's bytes; looks at them as they pass."""

    def __init__(self, header: str) -> None:
        """Raises InvalidChecksum."""
        algorithm, _, expected = header.partition(" ")
        if algorithm not in ALGORITHMS:
            known = " and ".join(ALGORITHMS)
            raise InvalidChecksum(f"the checksum {header[:100]!r} is not one of {known}")
        try:
            self._expected = base64.b64decode(expected, validate=True)
        except binascii.Error as error:
            raise InvalidChecksum(f"the checksum {header[:100]!r} is not in base64") from error
        self._algorithm = algorithm
        self._digest = hashlib.new(algorithm)

    def feed(self, data: bytes) -> None:
        self._digest.update(data)

    def finish(self) -> None:
        """Raises ChecksumMismatch."""
        if self._digest.digest() != self._expected:
            found = base64.b64encode(self._digest.digest()).decode()
            raise ChecksumMismatch(
                f"the bytes that arrived have the {self._algorithm} checksum {found}",
                hint="they were changed on their way, and not kept: send them again",
            )


def read_metadata(header: str) -> dict[str, str]:
    """Upload-Metadata: keys, and values in base64, which must be text here. Raises Unusable."""
    found: dict[str, str] = {}
    for pair in header.split(",") if header.strip() else ():
        key, _, value = pair.strip().partition(" ")
        try:
            text = base64.b64decode(value.strip(), validate=True).decode()
        except ValueError as error:  # also binascii.Error and UnicodeDecodeError
            raise _unreadable(f"the value of {key!r} is not UTF-8 text in base64") from error
        if not key or key in found:
            raise _unreadable(f"the key {key!r} is there twice" if key else "a key is empty")
        found[key] = text
    return found


def _unreadable(why: str) -> Unusable:
    return Unusable(
        f"the Upload-Metadata header cannot be understood: {why}",
        hint="write key and base64 of the value, separated by a space; pairs by a comma",
    )
