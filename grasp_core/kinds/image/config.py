"""What can be said of images: validated data, without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, FiniteFloat, model_validator

from grasp_core.config import Frozen

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Rgb = tuple[FiniteFloat, FiniteFloat, FiniteFloat]


class Preprocessing(Frozen):
    """How an image becomes the model's input: decode → resize → crop → normalise."""

    image_size: int = Field(ge=8, le=4096, description="Side of the square the model sees.")
    resize: int = Field(ge=8, le=8192, description="Side of the cached square it is cut from.")
    interpolation: Interpolation = "bicubic"
    mean: Rgb = (0.485, 0.456, 0.406)
    std: Rgb = (0.229, 0.224, 0.225)
    grayscale: bool = Field(False, description="Reduce to luminance, repeated on three channels.")
    contrast: bool = Field(False, description="Stretch each image's contrast to the full range.")

    @model_validator(mode="after")
    def _crop_fits(self) -> Preprocessing:
        if self.resize < self.image_size:
            raise ValueError(f"resize {self.resize} is smaller than image_size {self.image_size}")
        if min(self.std) <= 0:
            raise ValueError(f"std must be positive, not {self.std}")
        return self


class PreprocessingOverrides(Frozen):
    """The parts of an architecture's own preprocessing that a user replaces; None keeps its own."""

    image_size: int | None = Field(None, ge=8, le=4096)
    crop_pct: float | None = Field(None, gt=0.0, le=1.0)
    mean: Rgb | None = None
    std: Rgb | None = None
    grayscale: bool = False
    contrast: bool = False


class Augmentation(Frozen):
    """Random changes to training images; alignment and evaluation see centre crops."""

    flip: bool = Field(True, description="Mirror left to right, with probability one half.")
    padding: int | None = Field(
        None,
        ge=0,
        le=4096,
        description="Black border before the random crop; None: 1/8 of the image size.",
    )
