"""The target data of a fold: any of several formats, decoded once into a memory map. No torch.

What a format looks like and how its examples are decoded is each kind's own.
"""

from grasp_core.data.cache import Broken, Decoder
from grasp_core.data.contents import (
    SPLITS,
    Array,
    Contents,
    IndexArray,
    Limits,
    Sample,
    SplitName,
    Unreadable,
    fetch,
)
from grasp_core.data.formats import Format
from grasp_core.data.splits import Fractions
from grasp_core.data.target import Split, TargetData

__all__ = [
    "SPLITS",
    "Array",
    "Broken",
    "Contents",
    "Decoder",
    "Format",
    "Fractions",
    "IndexArray",
    "Limits",
    "Sample",
    "Split",
    "SplitName",
    "TargetData",
    "Unreadable",
    "fetch",
]
