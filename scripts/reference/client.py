"""The Python client, from its classes."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from grasp_client import Job, Model, Source, Target, Upload, Version
from grasp_client import errors as client_errors
from grasp_client._sync.jobs import JobHandle, Jobs
from grasp_client._sync.models import Models
from grasp_client._sync.sources import Sources
from grasp_client._sync.targets import Targets
from grasp_client._sync.uploads import Uploads
from scripts.reference.markdown import code, opening, sections, table

PARTS: dict[str, type] = {
    "targets": Targets,
    "models": Models,
    "sources": Sources,
    "jobs": Jobs,
    "uploads": Uploads,
}
RECORDS: tuple[type, ...] = (Target, Model, Version, Source, JobHandle, Job, Upload)
INTRODUCTION = """
`Grasp(url, key)` is a client of the service; without arguments it looks at `GRASP_URL` and
`GRASP_KEY`, and then at `http://127.0.0.1:8000`; there, it finds the token of a service without
keys in `GRASP_HOME` (`./.grasp`). It needs neither torch nor the packages of the server.
`AsyncGrasp` is the same, to be awaited; what it returns is called `AsyncJob`, `AsyncModel`, ….

```python
from grasp_client import Grasp

with Grasp() as g:
    source = g.sources.push("site-a.safetensors", model="faces")
    job = source.job.wait(progress=lambda job: print(job.stage, job.progress))
    g.models.pull("faces", "merged.safetensors")
```

Connections that break, 429 and 503 are tried again with growing pauses for `patience` seconds (60);
uploads and downloads go on where they were, and what is downloaded is compared with its sha256. A
request that may have arrived is sent again with the same `Idempotency-Key`, so nothing is done
twice.
"""


def page() -> str:
    return sections(
        opening("Python client", "grasp_client"),
        INTRODUCTION.strip(),
        *(part for name, kind in PARTS.items() for part in _part(f"g.{name}", kind)),
        "## Records",
        "What the operations return; fields mean what they mean over [HTTP](http.md#schemas).",
        *(part for kind in RECORDS for part in _record(kind)),
        "## Errors",
        f"```text\n{inspect.getdoc(client_errors)}\n```",
    )


def _part(name: str, kind: type) -> Iterator[str]:
    yield f"## {name}"
    yield table(("operation", "does"), _operations(kind, f"{name}."))


def _record(kind: type) -> Iterator[str]:
    yield f"### {kind.__name__}"
    yield inspect.getdoc(kind) or ""
    fields = ", ".join(map(code, inspect.get_annotations(kind)))
    yield f"Fields: {fields}." if fields else ""
    yield table(("operation", "does"), _operations(kind, ""))


def _operations(kind: type, prefix: str) -> Iterator[tuple[str, str]]:
    for name, member in vars(kind).items():
        if inspect.isfunction(member) and not name.startswith(("_", "model_", "require_")):
            yield f"`{prefix}{name}{_signature(member)}`", (inspect.getdoc(member) or "")


def _signature(method: Callable[..., Any]) -> str:
    """Names and defaults, and what comes back; the types of parameters are in the code."""
    found = inspect.signature(method)
    mine = [p.replace(annotation=p.empty) for p in found.parameters.values() if p.name != "self"]
    shown = found.replace(parameters=mine, return_annotation=found.empty)
    return f"{shown} → {found.return_annotation}"
