"""Ways to fold a source into a merged model: plain data, without torch.

A method is a file of this package and its line in `METHODS`; other packages add theirs as entry
points of the group `grasp.methods`.
"""

from __future__ import annotations

from collections.abc import Iterable

from grasp_core.methods import (
    fisher,
    grasp,
    iso_c,
    keep,
    magmax,
    mean,
    model_stock,
    opcm,
    regmean,
    source,
    task_arithmetic,
    ties,
    wudi,
)
from grasp_core.methods.declaration import (
    AFTER_MERGE,
    BEFORE_MERGE,
    TRANSFER,
    AnyMethod,
    Method,
    Stage,
)
from grasp_core.plugins import Declarations

DEFAULT = "grasp"  # of parameters of a method that do not say whose they are: once there was one
METHODS: Declarations[AnyMethod] = Declarations(
    "grasp.methods",
    Method,
    {
        "keep": keep.METHOD,
        "source": source.METHOD,
        "mean": mean.METHOD,
        "grasp": grasp.METHOD,
        "task_arithmetic": task_arithmetic.METHOD,
        "ties": ties.METHOD,
        "magmax": magmax.METHOD,
        "model_stock": model_stock.METHOD,
        "iso_c": iso_c.METHOD,
        "fisher": fisher.METHOD,
        "regmean": regmean.METHOD,
        "wudi": wudi.METHOD,
        "opcm": opcm.METHOD,
    },
)


def list_stages(methods: Iterable[AnyMethod]) -> tuple[Stage, ...]:
    """Those of every fold, and those that these methods add, in order."""
    added = dict.fromkeys(stage for method in methods for stage in method.stages)
    return (*BEFORE_MERGE, *added, TRANSFER, *AFTER_MERGE)
