"""The model card: what a merged model is, where it comes from, and how to use it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod

from grasp_core.checkpoints import Checkpoint
from grasp_core.kinds import Export, find_kind
from grasp_core.manifest import Manifest
from grasp_core.methods import METHODS
from grasp_core.report import FoldReport, Metrics

MEASURES = {
    "accuracy": "accuracy",
    "macro precision": "precision",
    "macro recall": "recall",
    "macro F1": "f1",
    "AUROC": "auroc",
    "mean log-likelihood": "log_likelihood",
}


def model_card(
    weights: Checkpoint,
    manifest: Manifest,
    export: Export,
    *,
    name: str,
    report: FoldReport | None = None,
) -> str:
    """The README.md of an exported checkpoint: Markdown with the Hugging Face front matter."""
    sections = {
        f"# {_plain(name)}": _summary(weights, manifest, export, report),
        "## Use": export.usage,
        "## Classes": table(("output", "class"), enumerate(weights.info.classes or ())),
        "## Preprocessing": export.preprocessing,
        "## Lineage": _lineage(weights),
        "## Provenance": _provenance(weights, manifest),
        "## Metrics": _metrics(report, find_kind(weights.info.kind).examples),
    }
    body = "\n".join(f"{title}\n\n{text}" for title, text in sections.items() if text)
    return f"{export.metadata}\n{body}"


def _summary(
    weights: Checkpoint, manifest: Manifest, export: Export, report: FoldReport | None
) -> str:
    millions = sum(_sizes(manifest).values()) / 1e6
    said = [f"{export.title}, {millions:.1f} million parameters."]
    if weights.info.lineage.version:
        said.append("Checkpoints from several sources were folded into it, one at a time.")
    method = METHODS.get(report.method or "") if report else None
    if report is not None and report.outcome == "kept":
        said.append("The last fold changed nothing: no candidate was better.")
    elif method is not None:
        paper = f" ([paper]({method.paper}))" if method.paper else ""
        said.append(f"The last fold was done by `{method.name}`{paper}: {method.summary}")
    return " ".join(said) + "\n"


def _lineage(weights: Checkpoint) -> str:
    lineage = weights.info.lineage
    rows = {
        "version": lineage.version,
        "sha256": weights.sha256,
        "parent": lineage.parent or "none",
        "source folded in": lineage.source or "none",
    }
    return table(("", "value"), rows.items())


def _provenance(weights: Checkpoint, manifest: Manifest) -> str:
    """The share of the parameters that each source gave, largest first."""
    given = weights.info.provenance.totals(_sizes(manifest))
    if not given:
        return ""
    rows = sorted(given.items(), key=lambda item: (-item[1], item[0]))
    shares = table(
        ("source", "share of parameters"), [(who, f"{share:.2%}") for who, share in rows]
    )
    return f"{shares}\nShares count what was transferred, before refinement on the target.\n"


def _metrics(report: FoldReport | None, examples: str) -> str:
    if report is None or report.metrics.after is None:
        return ""
    before, after = report.metrics.before, report.metrics.after
    columns = {
        "validation, before": before.val if before else None,
        "validation": after.val,
        "test, before": before.test if before else None,
        "test": after.test,
    }
    known = {title: metrics for title, metrics in columns.items() if metrics}
    counts = (examples, *(metrics.count for metrics in known.values()))
    rows = [
        (label, *(_measured(metrics, field) for metrics in known.values()))
        for label, field in MEASURES.items()
    ]
    return table(("", *known), [counts, *rows])


def _measured(metrics: Metrics, field: str) -> str:
    value = getattr(metrics, field)
    return "undefined" if value is None else f"{value:.4f}"


def _sizes(manifest: Manifest) -> dict[str, int]:
    return {name: prod(manifest.tensors[name].shape) for name in manifest.parameters()}


def table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(_plain(cell) for cell in line)} |\n" for line in lines)


def _plain(value: object) -> str:
    """Text that ends neither its line nor its cell, and is no markup: class names are anything."""
    text = " ".join(str(value).split())
    return re.sub(r"([\\`*_|<>\[\]#])", r"\\\1", text)
