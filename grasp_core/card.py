"""The model card: what a merged model is, where it comes from, and how to use it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod

from grasp_core.checkpoints import Checkpoint
from grasp_core.config import Preprocessing
from grasp_core.evaluation import Metrics
from grasp_core.manifest import Manifest
from grasp_core.report import FoldReport

PAPER = "https://arxiv.org/abs/2606.14900"
FRONT_MATTER = """\
---
library_name: timm
pipeline_tag: image-classification
tags:
- image-classification
- timm
- model-merging
- grasp
---
"""

USAGE = """\
```python
import timm
import torch
from PIL import Image

model = timm.create_model("local-dir:/path/to/this/folder", pretrained=True).eval()
config = timm.data.resolve_model_data_config(model)
transform = timm.data.create_transform(**config, is_training=False)
with torch.inference_mode():
    scores = model(transform(Image.open("image.png").convert("RGB")).unsqueeze(0)).softmax(dim=1)
print(model.pretrained_cfg["label_names"][scores.argmax()])
```
"""

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
    seen: Preprocessing,
    *,
    name: str,
    report: FoldReport | None = None,
) -> str:
    """The README.md of an exported checkpoint: Markdown with the Hugging Face front matter."""
    sections = {
        f"# {_plain(name)}": _summary(weights, manifest),
        "## Use": USAGE,
        "## Classes": _table(("output", "class"), enumerate(weights.info.classes or ())),
        "## Preprocessing": _preprocessing(seen),
        "## Lineage": _lineage(weights),
        "## Provenance": _provenance(weights, manifest),
        "## Metrics": _metrics(report),
    }
    body = "\n".join(f"{title}\n\n{text}" for title, text in sections.items() if text)
    return f"{FRONT_MATTER}\n{body}"


def _summary(weights: Checkpoint, manifest: Manifest) -> str:
    millions = sum(_sizes(manifest).values()) / 1e6
    merged = (
        " It was merged by GRASP (Gradient-Aligned Sequential Parameter Transfer,"
        f" [arXiv:2606.14900]({PAPER})), which folds checkpoints from several sources into one"
        " model, one at a time."
    )
    return (
        f"An image classifier with {manifest.classes} classes: timm's `{manifest.architecture}`,"
        f" {millions:.1f} million parameters.{merged if weights.info.lineage.version else ''}\n"
    )


def _preprocessing(seen: Preprocessing) -> str:
    rows = {
        "shorter side resized to": f"{seen.resize} ({seen.interpolation})",
        "centre crop": f"{seen.image_size} × {seen.image_size}",
        "mean": seen.mean,
        "std": seen.std,
    }
    return _table(("step", "value"), rows.items()) + _beyond_timm(seen)


def _beyond_timm(seen: Preprocessing) -> str:
    """What config.json cannot express, so that nobody takes timm's transform for the whole."""
    steps = {
        "reduced to luminance, repeated on three channels": seen.grayscale,
        "stretched in contrast to the full range, each by itself": seen.contrast,
    }
    wanted = [step for step, given in steps.items() if given]
    if not wanted:
        return ""
    return (
        f"\n**Not in timm's config:** images were also {' and '.join(wanted)}. `create_transform`"
        " cannot do this; do it to the image before the transform, or the model sees images of"
        " another kind than it was tuned and measured on.\n"
    )


def _lineage(weights: Checkpoint) -> str:
    lineage = weights.info.lineage
    rows = {
        "version": lineage.version,
        "sha256": weights.sha256,
        "parent": lineage.parent or "none",
        "source folded in": lineage.source or "none",
    }
    return _table(("", "value"), rows.items())


def _provenance(weights: Checkpoint, manifest: Manifest) -> str:
    """The share of the parameters that each source gave, largest first."""
    given = weights.info.provenance.totals(_sizes(manifest))
    if not given:
        return ""
    rows = sorted(given.items(), key=lambda item: (-item[1], item[0]))
    table = _table(
        ("source", "share of parameters"), [(who, f"{share:.2%}") for who, share in rows]
    )
    return f"{table}\nShares count what was transferred, before refinement on the target.\n"


def _metrics(report: FoldReport | None) -> str:
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
    counts = ("images", *(metrics.count for metrics in known.values()))
    rows = [
        (label, *(_measured(metrics, field) for metrics in known.values()))
        for label, field in MEASURES.items()
    ]
    return _table(("", *known), [counts, *rows])


def _measured(metrics: Metrics, field: str) -> str:
    value = getattr(metrics, field)
    return "undefined" if value is None else f"{value:.4f}"


def _sizes(manifest: Manifest) -> dict[str, int]:
    return {name: prod(manifest.tensors[name].shape) for name in manifest.parameters()}


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(_plain(cell) for cell in line)} |\n" for line in lines)


def _plain(value: object) -> str:
    """Text that ends neither its line nor its cell, and is no markup: class names are anything."""
    text = " ".join(str(value).split())
    return re.sub(r"([\\`*_|<>\[\]#])", r"\\\1", text)
