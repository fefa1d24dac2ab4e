"""The target data of a fold: any of several layouts, decoded once into a memory map. No torch."""

from grasp_core.data.augment import centre_crop, random_crop, random_flip
from grasp_core.data.index import BrokenImage
from grasp_core.data.limits import Limits
from grasp_core.data.sample import SPLITS, IndexArray, SplitName, UInt8Array
from grasp_core.data.target import Split, TargetData

__all__ = [
    "SPLITS",
    "BrokenImage",
    "IndexArray",
    "Limits",
    "Split",
    "SplitName",
    "TargetData",
    "UInt8Array",
    "centre_crop",
    "random_crop",
    "random_flip",
]
