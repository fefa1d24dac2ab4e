"""Models: one lineage of merged versions each, to be made, looked at and downloaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from grasp_client.bodies import Progress, form, sha256_of
from grasp_client.downloads import download
from grasp_client.exchange import ask
from grasp_client.jobs import Job, JobHandle, JobProblem, wait_for
from grasp_client.plans import Bound, C, Call, Do, Plan, at, operation
from grasp_client.records import Record, get, list_all, read
from grasp_client.sending import existing_file


class Model(Record[C]):
    """A model; those of `models.get` and `models.update` also say how their newest version is."""

    id: str
    name: str
    status: str
    version: int | None
    architecture: str
    classes: list[str] | None
    image_size: int | None
    preprocessing: dict[str, Any]
    seed: int
    merge: dict[str, Any]
    target: str
    keep_versions: int | None
    keep_sources: bool
    queue: str | None
    error: JobProblem | None
    held: JobProblem | None = None
    job: JobHandle[C]
    created_at: datetime
    sha256: str | None = None
    size: int | None = None
    metrics: dict[str, Any] | None = None
    sources: dict[str, int] | None = None

    @operation
    def wait(
        self, progress: Callable[[Job[C]], object] | None = None, timeout: float | None = None
    ) -> Plan[Model[C]]:
        """The model once it is prepared. Raises JobFailed, JobUnfinished."""
        yield from wait_for(self._client, self.job.id, progress, timeout)
        return (yield from get_model(self._client, self.id))


class Version(Record[C]):
    """What one fold has made, or a rollback."""

    number: int
    sha256: str
    size: int
    parent: int | None
    source: str | None
    rollback_of: int | None
    metrics: dict[str, Any]
    available: bool
    problem: str | None = None
    job: JobHandle[C]
    created_at: datetime


class Models(Bound[C]):
    """`client.models`; all of them are named by id or name."""

    def __init__(self, client: C) -> None:
        self._client = client

    @operation
    def create(
        self,
        /,
        name: str,
        *,
        architecture: str,
        target: str,
        classes: Sequence[str] | None = None,
        image_size: int | None = None,
        preprocessing: Mapping[str, Any] | None = None,
        merge: Mapping[str, Any] | None = None,
        weights: str | Path | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> Plan[Model[C]]:
        """Make a model of a timm architecture; `options` are further fields of POST /models.

        `weights` is a safetensors file to begin from: the first source, folded before any other.
        """
        given = {
            "name": name,
            "architecture": architecture,
            "target": target,
            "classes": list(classes) if classes else None,
            "image_size": image_size,
            "preprocessing": preprocessing,
            "merge": merge,
            **options,
        }
        said = {key: value for key, value in given.items() if value is not None}
        call = Call("POST", "/models", json=said)
        if weights is not None:
            file = existing_file(weights)
            digest = yield Do(lambda: sha256_of(file))
            body = form(file, {"model": json.dumps(said), "sha256": digest}, progress)
            call = Call("POST", "/models", body=body)
        answer = yield from ask(self._client, call)
        return read(Model, self._client, answer.json()["model"])

    @operation
    def get(self, model: str) -> Plan[Model[C]]:
        """Its state, with the figures of its newest version."""
        return get_model(self._client, model)

    @operation
    def versions(self, model: str, *, limit: int | None = None) -> Plan[list[Version[C]]]:
        """Newest first."""
        return list_all(Version, self._client, at("models", model, "versions"), limit, {})

    @operation
    def list(
        self,
        *,
        target: str | None = None,
        architecture: str | None = None,
        status: str | None = None,
        limit: int | None = None,
    ) -> Plan[list[Model[C]]]:
        """Newest first."""
        filters = {"target": target, "architecture": architecture, "status": status}
        return list_all(Model, self._client, "/models", limit, filters)

    @operation
    def update(self, /, model: str, **changes: Any) -> Plan[Model[C]]:
        """Other parameters for later folds; what is not given stays, also inside `merge`."""
        answer = yield from ask(self._client, Call("PATCH", at("models", model), json=changes))
        return read(Model, self._client, answer.json())

    @operation
    def delete(self, model: str) -> Plan[None]:
        """With its versions, sources and jobs. There is no way back."""
        yield from ask(self._client, Call("DELETE", at("models", model)))

    @operation
    def report(self, model: str, number: int | None = None) -> Plan[dict[str, Any]]:
        """Everything that the fold behind a version, or the newest, has measured."""
        return self._about_version(model, number, "report")

    @operation
    def provenance(self, model: str, number: int | None = None) -> Plan[dict[str, Any]]:
        """Which source each parameter of a version, or of the newest, came from."""
        return self._about_version(model, number, "provenance")

    @operation
    def rollback(self, model: str, version: int) -> Plan[Version[C]]:
        """A new version that equals an older one."""
        call = Call("POST", at("models", model, "rollback"), json={"version": version})
        answer = yield from ask(self._client, call)
        return read(Version, self._client, answer.json())

    @operation
    def pull(
        self,
        model: str,
        to: str | Path = ".",
        *,
        version: int | None = None,
        progress: Progress | None = None,
    ) -> Plan[Path]:
        """Download the newest weights, or a version's, and return the path of the file.

        `to` is a file, or a folder in which it is called `<name>-v<version>.safetensors`: one that
        exists, or is written with a slash at its end. A connection that is cut is gone on with.
        Raises Damaged rather than to leave a file whose sha256 is not the version's.
        """
        found = yield from get_model(self._client, model)
        number = version or found.version
        place = at("models", found.id, *(("versions", number) if number else ()))
        path = Path(to)
        if path.is_dir() or str(to).endswith("/"):
            path /= f"{found.name}-v{number}.safetensors"
        return (yield from download(self._client, place, path, progress))

    def _about_version(self, model: str, number: int | None, what: str) -> Plan[dict[str, Any]]:
        if number is None:
            number = (yield from get_model(self._client, model)).version
        # A model without versions has no number 1 either, and the server says so.
        call = Call("GET", at("models", model, "versions", number or 1, what))
        answer: dict[str, Any] = (yield from ask(self._client, call)).json()
        return answer


def get_model(client: C, model: str) -> Plan[Model[C]]:
    return get(Model, client, at("models", model, "info"))
