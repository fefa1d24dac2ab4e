"""One example of every body, for the OpenAPI document; a test holds them against the schemas."""

import json
from functools import cache
from typing import Any

from app.errors import phrase
from grasp_core.kinds import DEFAULT, check_augmentation, find_kind, read_options
from grasp_core.parameters import parse_config

SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
TARGET, MODEL, SOURCE, JOB, WORKER, UPLOAD = (
    f"{prefix}_01m7hey7wbsmw53n1p6d1mdv6w" for prefix in ("tgt", "mdl", "src", "job", "wrk", "upl")
)
TIME = "2026-01-31T12:00:00Z"
SCORES = {"val": {"accuracy": 0.91}, "test": {"accuracy": 0.9}}

_job: dict[str, Any] = {
    "id": JOB,
    "owner": "local",
    "kind": "fold",
    "verdict": None,
    "status": "running",
    "stage": "refine",
    "progress": 0.6,
    "metrics": {"loss": 0.31},
    "attempts": 1,
    "failures": [],
    "model": MODEL,
    "target": TARGET,
    "source": SOURCE,
    "version": None,
    "error": None,
    "revision": 7,
    "created_at": TIME,
    "started_at": TIME,
    "finished_at": None,
    "links": {"self": f"/jobs/{JOB}", "events": f"/jobs/{JOB}/events"},
}
_target: dict[str, Any] = {
    "id": TARGET,
    "name": "faces-1990s",
    "kind": DEFAULT,
    "status": "ready",
    "uri": "file:///data/faces",
    "sha256": None,
    "size": None,
    "classes": ["F", "M"],
    "class_count": 2,
    "counts": {"train": {"F": 700, "M": 700}, "val": {"F": 150, "M": 150}},
    "images": 1700,
    "broken": [],
    "broken_count": 0,
    "fingerprint": SHA256,
    "sensitivity": {"count": 300, "overall": 0.023, "one_class": 0.04, "classes": 2},
    "warnings": [],
    "error": None,
    "job": JOB,
    "created_at": TIME,
    "links": {"self": f"/targets/{TARGET}", "job": f"/jobs/{JOB}"},
}
_model: dict[str, Any] = {  # without what a kind and a method declare: see `_model_example`
    "id": MODEL,
    "name": "faces",
    "status": "ready",
    "version": 2,
    "kind": DEFAULT,
    "architecture": "mobilevit_xxs",
    "classes": ["F", "M"],
    "class_count": 2,
    "image_size": 64,
    "seed": 0,
    "learning_rate": {
        "rate": 0.001,
        "version": 1,
        "probe": [
            {"rate": 5e-5, "step": 100, "val_accuracy": 0.84, "val_log_likelihood": -0.61},
            {"rate": 0.001, "step": 80, "val_accuracy": 0.91, "val_log_likelihood": -0.33},
        ],
    },
    "target": TARGET,
    "keep_versions": None,
    "keep_sources": False,
    "queue": None,
    "base": None,
    "files": [],
    "error": None,
    "held": None,
    "accuracy": {"val": 0.91, "test": 0.9},
    "job": JOB,
    "created_at": TIME,
    "links": {"self": f"/models/{MODEL}/info", "download": f"/models/{MODEL}"},
}
_source: dict[str, Any] = {
    "id": SOURCE,
    "name": "site-a",
    "model": MODEL,
    "sha256": SHA256,
    "content": SHA256,
    "size": 5_083_136,
    "classes": ["F", "M"],
    "class_count": 2,
    "status": "running",
    "version": None,
    "stored": True,
    "job": JOB,
    "created_at": TIME,
    "links": {"self": f"/sources/{SOURCE}", "job": f"/jobs/{JOB}"},
}
_version: dict[str, Any] = {
    "number": 2,
    "sha256": SHA256,
    "size": 5_083_136,
    "method": "grasp",
    "state": None,
    "files": [],
    "parent": 1,
    "source": SOURCE,
    "rollback_of": None,
    "kept": False,
    "summary": "+1.8 points on test over doing without it (0.4 to 3.2); mean won over keep, source",
    "metrics": SCORES,
    "available": True,
    "problem": None,
    "job": JOB,
    "created_at": TIME,
    "links": {"self": f"/models/{MODEL}/versions/2"},
}
_worker: dict[str, Any] = {
    "id": WORKER,
    "host": "gpu-1",
    "pid": 4711,
    "device": "cuda",
    "memory_bytes": 24 * 2**30,
    "release": "0.1.0",
    "alive": True,
    "busy": True,
    "job": JOB,
    "started_at": TIME,
    "seen_at": TIME,
}
_upload: dict[str, Any] = {
    "id": UPLOAD,
    "size": 5_083_136,
    "received": 1_048_576,
    "metadata": {"filename": "site-a.safetensors", "model": "faces"},
    "created_at": TIME,
    "expires_at": TIME,
    "links": {"self": f"/uploads/{UPLOAD}"},
}
_report: dict[str, Any] = {
    "schema": 2,
    "outcome": "accepted",
    "version": 2,
    "source": SHA256,
    "metrics": {"before": SCORES, "after": SCORES},
    "transferred_share": 0.24,
    "parameters": [{"name": "stem.conv.weight", "score": 0.4, "transferred": 1, "size": 432}],
    "stages": [{"name": "refine", "seconds": 21.5, "peak_bytes": 310_000_000}],
}
_file: dict[str, Any] = {
    "name": "state/mean",
    "sha256": SHA256,
    "size": 5_083_136,
    "links": {"self": f"/models/{MODEL}/versions/2/files/state/mean"},
}
_read: dict[str, dict[str, Any]] = {
    "FileRead": _file,
    "JobRead": _job,
    "TargetRead": _target,
    "SourceRead": _source,
    "VersionRead": _version,
    "WorkerRead": _worker,
    "UploadRead": _upload,
}
_model_create: dict[str, Any] = {
    "name": "faces",
    "architecture": "mobilevit_xxs",
    "target": "faces-1990s",
    "classes": ["F", "M"],
    "image_size": 64,
    "merge": {"refine": {"epochs": 3}, "gate": {"max_drop": 0.02}},
}


def _page(item: dict[str, Any]) -> dict[str, Any]:
    return {"items": [item], "next_cursor": None}


_EXAMPLES: dict[str, Any] = {
    **_read,
    **{f"Page_{name}_": _page(it) for name, it in _read.items()},
    "TargetCreate": {"name": "faces-1990s", "uri": "file:///data/faces"},
    "TargetCreateForm": {"name": "faces-1990s", "file": "…"},
    "TargetSamples": {"items": [{"class": "F", "split": "train", "png": "iVBORw0KGgo="}]},
    "TargetCreated": {"target": _target, "job": _job},
    "ModelCreate": _model_create,
    "ModelCreateForm": {"model": json.dumps(_model_create), "file": "…"},
    "ModelUpdate": {"merge": {"refine": {"epochs": 5}, "gate": {"max_drop": 0.05}}},
    "SourceCreate": {"model": "faces", "uri": "file:///data/site-a.safetensors"},
    "SourceCreateForm": {"model": "faces", "name": "site-a", "classes": '["F", "M"]', "file": "…"},
    "SourceCreated": {"source": _source, "job": _job},
    "UploadBytes": "…",
    "Rollback": {"version": 1},
    "ProvenanceRead": {
        "version": 2,
        "sources": [{"sha256": SHA256, "source": SOURCE, "name": "site-a", "share": 1.0}],
        "parameters": [{"name": "stem.conv.weight", "size": 432, "shares": {SHA256: 1.0}}],
    },
    "Report": _report,
    "Health": {"status": "ok", "version": "0.1.0"},
    "Readiness": {"status": "ready", "checks": {"database": "ok", "blobs": "ok", "workers": "1"}},
}
_model_info: dict[str, Any] = {
    "sha256": SHA256,
    "size": 5_083_136,
    "metrics": SCORES,
    "best": 2,
    "sensitivity": {"count": 300, "overall": 0.023, "one_class": 0.04, "classes": 2},
    "sources": {"succeeded": 2, "rejected": 1},
}


@cache
def find_examples() -> dict[str, Any]:
    """By the name of the schema."""
    model = _model_example()
    return _EXAMPLES | {
        "ModelRead": model,
        "Page_ModelRead_": _page(model),
        "ModelCreated": {"model": model, "job": _job, "source": None},
        "ModelInfo": model | _model_info,
    }


def _model_example() -> dict[str, Any]:
    kind = find_kind(DEFAULT)
    overrides = read_options(kind, "overrides", {"image_size": 64})
    merge = check_augmentation(parse_config({}), kind)
    declared = {"preprocessing": overrides, "merge": merge}
    return _model | {name: part.model_dump(mode="json") for name, part in declared.items()}


EVENTS = f"event: job\ndata: {json.dumps(_job)}\nid: 7\n\n"
METRICS = '# TYPE grasp_jobs gauge\ngrasp_jobs{kind="fold",status="succeeded"} 12.0\n'

CODES = {  # the most usual of those that a status can have
    400: "invalid_json",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    408: "too_slow",
    409: "conflict",
    410: "bytes_gone",
    412: "precondition_failed",
    413: "too_large",
    415: "unsupported_media_type",
    416: "range_not_satisfiable",
    422: "invalid_request",
    460: "checksum_mismatch",
    500: "internal_error",
    503: "unavailable",
    507: "storage_full",
}


def problem_example(status: int, description: str) -> dict[str, Any]:
    return {
        "type": "about:blank",
        "title": phrase(status),
        "status": status,
        "detail": description,
        "code": CODES[status],
        "request_id": "5a3c1f0e9b7d4c2f8e6a1b0d9c8e7f6a",
    }
