"""What a source has learned, θk - θ0, and what can be done to it as it arrives.

All of it looks at one source alone, so that methods which fold source by source stay exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from grasp_core.config import Fraction, MethodConfig

if TYPE_CHECKING:
    from torch import Tensor

MAX_SCALE = 100.0


class TaskVectorConfig(MethodConfig):
    """Of methods that merge task vectors."""

    scale: float = Field(
        1.0, ge=-MAX_SCALE, le=MAX_SCALE, description="λ: times the merged task vector."
    )
    density: float = Field(
        1.0,
        gt=0.0,
        le=1.0,
        description="Share of each tensor of a task vector that is kept: its largest entries.",
    )
    gamma: Fraction = Field(
        0.0,
        description="Share of each tensor of a task vector that is dropped first: its very largest"
        " entries (Breadcrumbs).",
    )
    drop: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="Share of the entries of a task vector that is dropped at random; the others"
        " are scaled up for it (DARE). The source decides which.",
    )
    shallow: float = Field(
        1.0,
        ge=0.0,
        le=MAX_SCALE,
        description="Scale of a task vector's first parameter; it grows or falls evenly to 1 at the"
        " last (LiNeS).",
    )


def alter(vector: Tensor, config: TaskVectorConfig, seed: tuple[str, str], depth: float) -> Tensor:
    """A tensor of a task vector, `depth` deep in its model: 0 the first, 1 the last."""
    if config.density < 1.0 or config.gamma > 0.0:
        vector = trim(vector, config.density, config.gamma)
    if config.drop > 0.0:
        vector = drop_and_rescale(vector, config.drop, seed)
    if config.shallow != 1.0:
        vector = vector * (config.shallow + (1.0 - config.shallow) * depth)
    return vector


def trim(vector: Tensor, density: float, gamma: float = 0.0) -> Tensor:
    """Without the `gamma` share of largest entries, the `density` share that is largest then.

    Entries as large as the smallest that stays do, too.
    """
    sizes, count = vector.abs(), vector.numel()
    dropped = int(gamma * count)
    kept = min(max(1, int(density * count)), count - dropped)
    if kept <= 0:
        return vector * 0.0
    smallest = sizes.flatten().kthvalue(count - dropped - kept + 1).values
    trimmed = vector * (sizes >= smallest)
    if dropped == 0:
        return trimmed
    return trimmed * (sizes <= sizes.flatten().kthvalue(count - dropped).values)


def drop_and_rescale(vector: Tensor, share: float, seed: tuple[str, str]) -> Tensor:
    """https://arxiv.org/abs/2311.03099"""
    import torch

    from grasp_core.seeds import derive_seed

    generator = torch.Generator().manual_seed(derive_seed("drop", *seed))
    kept = torch.rand(vector.shape, generator=generator) >= share
    return vector * kept / (1.0 - share)
