"""What a checkpoint needs beside it to be a folder that timm loads."""

from __future__ import annotations

import json
from math import floor, nextafter
from typing import Any

from timm.models import split_model_name_tag

from grasp_core.card import table
from grasp_core.checkpoints import CheckpointInfo
from grasp_core.kinds.declaration import Export
from grasp_core.kinds.image.architectures import (
    model_arguments,
    pretrained_config,
    resolve_preprocessing,
)
from grasp_core.kinds.image.config import Preprocessing
from grasp_core.spec import ModelSpec

# What timm knows of the architecture itself, and not of its own weights, licences or labels.
KEPT = ("fixed_input_size", "pool_size", "first_conv", "classifier")
METADATA = """\
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


def describe_export(info: CheckpointInfo) -> Export:
    """What `timm.create_model("local-dir:<folder>", pretrained=True)` needs beside the weights."""
    given = info.preprocessing
    size = Preprocessing.model_validate(given).image_size if given else None
    spec = ModelSpec(
        architecture=info.architecture or "",
        classes=info.classes or (),
        preprocessing={"image_size": size},
    )
    seen = Preprocessing.model_validate(given) if given else resolve_preprocessing(spec)
    config = json.dumps(timm_config(spec, seen), indent=2, ensure_ascii=False)
    return Export(
        spec=spec,
        files={"config.json": config + "\n"},
        metadata=METADATA,
        title=f"An image classifier with {len(spec.classes)} classes: timm's `{spec.architecture}`",
        usage=USAGE,
        preprocessing=_preprocessing(seen),
    )


def timm_config(spec: ModelSpec, seen: Preprocessing) -> dict[str, Any]:
    """timm's config.json: how to build the model, and how to prepare its images."""
    own = pretrained_config(spec.architecture)
    return {
        "architecture": split_model_name_tag(spec.architecture)[0],
        "num_classes": len(spec.classes),
        "label_names": list(spec.classes),
        "model_args": model_arguments(spec),
        "pretrained_cfg": {
            **{key: own[key] for key in KEPT if key in own},
            "num_classes": len(spec.classes),
            "input_size": [3, seen.image_size, seen.image_size],
            "interpolation": seen.interpolation,
            "crop_pct": crop_pct(seen),
            "crop_mode": "center",
            "mean": list(seen.mean),
            "std": list(seen.std),
        },
    }


def crop_pct(seen: Preprocessing) -> float:
    """image_size / resize, such that timm's floor(image_size / crop_pct) is `resize` again."""
    ratio = seen.image_size / seen.resize
    return ratio if floor(seen.image_size / ratio) == seen.resize else nextafter(ratio, 0.0)


def _preprocessing(seen: Preprocessing) -> str:
    rows = {
        "shorter side resized to": f"{seen.resize} ({seen.interpolation})",
        "centre crop": f"{seen.image_size} × {seen.image_size}",
        "mean": seen.mean,
        "std": seen.std,
    }
    return table(("step", "value"), rows.items()) + _beyond_timm(seen)


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
