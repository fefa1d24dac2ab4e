"""What the registry raises on purpose.

GraspError (grasp_core.errors)
└── RegistryError
    ├── NotFound             no such thing, or not the caller's
    ├── Conflict             the present state does not allow it
    │   ├── NameTaken            the owner has another of that name
    │   ├── StillUsed            a target that models need
    │   ├── NoVersion            nothing is merged yet
    │   ├── BytesGone            the bytes were deleted, on purpose, after use
    │   ├── BadVersion           the weights of a version are damaged or missing
    │   ├── StaleBase            the model went on to another version while a fold ran
    │   ├── OffsetMismatch       bytes that do not continue an upload
    │   ├── UploadUnfinished     bytes of an upload are missing
    │   └── KeyReused            an Idempotency-Key came with another request
    ├── Unusable             a request that can never work
    ├── NotReady             the database cannot be used yet, or never
    └── LeaseLost            a worker's claim on a queue is over; nothing it did may count
"""

from typing import Any

from grasp_core.errors import GraspError


class RegistryError(GraspError):
    code = "registry_error"


class NotFound(RegistryError):
    """`kind` and `name` say what was asked for, where it has a name or an id."""

    code = "not_found"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        kind: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.name = name

    def fields(self) -> dict[str, Any]:
        return {"missing": {"kind": self.kind, "name": self.name}} if self.kind else {}


class Conflict(RegistryError):
    code = "conflict"


class NameTaken(Conflict):
    code = "name_taken"


class StillUsed(Conflict):
    code = "still_used"


class NoVersion(Conflict):
    code = "no_version"


class BytesGone(Conflict):
    code = "bytes_gone"


class BadVersion(Conflict):
    """Its code is that of what is wrong with the blob."""

    def __init__(self, message: str, *, code: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class StaleBase(Conflict):
    code = "stale_base"


class OffsetMismatch(Conflict):
    code = "offset_mismatch"


class UploadUnfinished(Conflict):
    code = "upload_unfinished"


class KeyReused(Conflict):
    code = "idempotency_key_reused"


class Unusable(RegistryError):
    code = "invalid_request"


class LeaseLost(RegistryError):
    code = "lease_lost"


class NotReady(RegistryError):
    """`hopeless` says that waiting will not help."""

    code = "unavailable"

    def __init__(self, message: str, *, hint: str | None = None, hopeless: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.hopeless = hopeless
