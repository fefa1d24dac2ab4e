# Written by `make client` from grasp_client/_async/models.py: change that one.
"""Models: one lineage of merged versions each, to be made, looked at and downloaded."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from grasp_client import concurrency
from grasp_client._sync.downloads import Download
from grasp_client._sync.jobs import Job, JobHandle
from grasp_client._sync.records import Collection, Record
from grasp_client.files import Progress, as_file_name, existing_file, form, sha256_of
from grasp_client.protocol import (
    Blob,
    JobProblem,
    LearningRate,
    Sensitivity,
    StoredFile,
    given,
    path,
)


class Model(Record):
    """A model; those of `models.get` and `models.update` also say how their newest version is."""

    id: str
    name: str
    status: str
    version: int | None
    kind: str | None = None  # None: the server is too old to say
    architecture: str
    classes: list[str] | None  # None in lists, where they are long
    class_count: int | None = None  # None: the server is too old to say
    image_size: int | None
    preprocessing: dict[str, Any]
    seed: int
    merge: dict[str, Any]
    learning_rate: LearningRate | None = None  # None: no fold has looked for one
    target: str
    keep_versions: int | None
    keep_sources: bool
    queue: str | None
    base: Blob | None = None
    files: list[StoredFile] = []
    error: JobProblem | None
    held: JobProblem | None = None
    job: JobHandle
    created_at: datetime
    sha256: str | None = None
    size: int | None = None
    accuracy: dict[str, float] | None = None  # of the newest version, in lists
    metrics: dict[str, Any] | None = None
    sensitivity: Sensitivity | None = None  # of its gate, to its target
    best: int | None = None  # the version that is, by validation log-likelihood
    sources: dict[str, int] | None = None

    def wait(
        self, progress: Callable[[Job], object] | None = None, timeout: float | None = None
    ) -> Model:
        """The model once it is prepared. Raises JobFailed, JobUnfinished."""
        self.job.wait(progress, timeout)
        return self._client.models.get(self.id)


class Version(Record):
    """What one fold has made, or a rollback."""

    number: int
    sha256: str
    size: int
    method: str | None = None  # None: nobody knows, or the server is too old to say
    state: Blob | None = None
    files: list[StoredFile] = []
    parent: int | None
    source: str | None
    rollback_of: int | None
    kept: bool = False  # the weights are those of the version before: no candidate was better
    summary: str | None = None  # what its source was worth, and which candidate won
    metrics: dict[str, Any]
    available: bool
    problem: str | None = None
    job: JobHandle
    created_at: datetime


class Models(Collection):
    """`client.models`; all of them are named by id or name."""

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
        base: str | Path | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> Model:
        """Make a model; `options` are further fields of POST /models.

        `weights` is a safetensors file to begin from: the first source, folded before any other.
        `base` is what the sources were fine-tuned from, for methods that need it: a safetensors
        file, a uri that the server can read, or "initial" for the weights.
        """
        fields = given(
            name=name,
            architecture=architecture,
            target=target,
            classes=list(classes) if classes else None,
            image_size=image_size,
            preprocessing=preprocessing,
            merge=merge,
            base=None if base is None else self._send_base(base, progress),
            **options,
        )
        if weights is None:
            answer = self._client.ask("POST", "/models", json=fields)
        else:
            file = existing_file(weights)
            digest = concurrency.run(sha256_of, file)
            body = form(file, {"model": json.dumps(fields), "sha256": digest}, progress)
            answer = self._client.ask("POST", "/models", body=body)
        return self._read(Model, answer["model"])

    def _send_base(self, base: str | Path, progress: Progress | None) -> Any:
        """As the server takes it; a file is sent before its model is made."""
        if base == "initial":
            return base
        if "://" in str(base):
            return {"uri": str(base)}
        file = existing_file(base)
        digest = concurrency.run(sha256_of, file)
        about = {"sha256": digest}
        upload = self._client.uploads.send(file, metadata=about, progress=progress)
        return {"upload": upload.id, "sha256": digest}

    def get(self, model: str) -> Model:
        """Its state, with the figures of its newest version."""
        return self._get(Model, path("models", model, "info"))

    def versions(self, model: str, *, limit: int | None = None) -> list[Version]:
        """Newest first."""
        return self._list(Version, path("models", model, "versions"), limit)

    def list(
        self,
        *,
        target: str | None = None,
        architecture: str | None = None,
        status: str | None = None,
        limit: int | None = None,
    ) -> list[Model]:
        """Newest first."""
        filters = {"target": target, "architecture": architecture, "status": status}
        return self._list(Model, "/models", limit, **filters)

    def update(self, /, model: str, **changes: Any) -> Model:
        """Other parameters for later folds; what is not given stays, also inside `merge`."""
        answer = self._client.ask("PATCH", path("models", model), json=changes)
        return self._read(Model, answer)

    def delete(self, model: str) -> None:
        """With its versions, sources and jobs. There is no way back."""
        self._client.ask("DELETE", path("models", model))

    def report(self, model: str, number: int | None = None) -> dict[str, Any]:
        """Everything that the fold behind a version, or the newest, has measured."""
        return self._about_version(model, number, "report")

    def provenance(self, model: str, number: int | None = None) -> dict[str, Any]:
        """Which source each parameter of a version, or of the newest, came from."""
        return self._about_version(model, number, "provenance")

    def rollback(self, model: str, version: int) -> Version:
        """A new version that equals an older one."""
        place = path("models", model, "rollback")
        answer = self._client.ask("POST", place, json={"version": version})
        return self._read(Version, answer)

    def files(
        self, model: str, *, version: int | Literal["best"] | None = None
    ) -> builtins.list[StoredFile]:
        """What belongs to a version, or the newest, beside its weights; then the model's own."""
        found = self.get(model)
        return self._files(found, _choose(found, version))

    def pull(
        self,
        model: str,
        to: str | Path = ".",
        *,
        version: int | Literal["best"] | None = None,
        file: str | None = None,
        progress: Progress | None = None,
    ) -> Path:
        """Download the newest weights, or a version's, and return the path of the file.

        With `file`, it is that one of `files` instead, such as "state/mean" or "base". `to` is a
        file, or a folder in which it is called `<name>-v<version>.safetensors`: one that exists, or
        is written with a slash at its end. A connection that is cut is resumed. Raises Damaged
        rather than to leave a file whose sha256 is not what it should be.
        """
        found = self.get(model)
        number = _choose(found, version)
        called, place = f"{found.name}-v{number}", _place(found, number)
        if file is not None:
            stored = self._files(found, number)
            own = {each.name: each.links["self"] for each in stored}
            place = own.get(file, f"{place}/files/{file}")  # or the server says what there is
            called = f"{called if place.startswith(_place(found, number)) else found.name}-{file}"
        target = Path(to)
        if target.is_dir() or str(to).endswith("/"):
            target /= as_file_name(called)
        return Download(self._client, place, progress).write(target)

    def _files(self, model: Model, number: int | None) -> builtins.list[StoredFile]:
        of_version = [f"{_place(model, number)}/files"] if number else []
        answers = [
            self._client.ask("GET", place)
            for place in (*of_version, path("models", model.id, "files"))
        ]
        return [StoredFile.model_validate(each) for answer in answers for each in answer["items"]]

    def _about_version(self, model: str, number: int | None, what: str) -> dict[str, Any]:
        if number is None:
            number = (self.get(model)).version
        # A model without versions has no number 1 either, and the server says so.
        place = path("models", model, "versions", number or 1, what)
        answer: dict[str, Any] = self._client.ask("GET", place)
        return answer


def _choose(model: Model, version: int | Literal["best"] | None) -> int | None:
    return (model.best if version == "best" else version) or model.version


def _place(model: Model, number: int | None) -> str:
    """Of a version; without one, of the newest, and the server says if there is none."""
    return path("models", model.id, *(("versions", number) if number else ()))
