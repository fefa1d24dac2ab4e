"""Rows of numbers with one label each, and small multilayer perceptrons. Loads no torch."""

from pydantic import Field

from grasp_core.config import Frozen
from grasp_core.kinds.declaration import Implementation, Kind


class Overrides(Frozen):
    """What a model may say of its preprocessing."""

    log: bool = Field(False, description="Take sign(x) · log(1 + |x|) of every number.")


class Preprocessing(Overrides):
    """All of it, as checkpoints say it."""

    columns: int = Field(ge=1, description="Numbers in a row.")


class Augmentation(Frozen):
    """Random changes to training rows."""

    noise: float = Field(0.0, ge=0.0, description="Spread of what is added to every number.")


def _load() -> Implementation:
    from grasp_tabular import implementation

    return implementation


TABULAR = Kind(
    name="tabular",
    summary="Rows of numbers with one label each, and small multilayer perceptrons.",
    examples="rows",
    formats="a .csv of numbers with a column label, and one called split if there are splits",
    architectures="mlp-16-8 and its like: numbers in a row, then units of each hidden layer",
    load=_load,
    overrides=Overrides,
    preprocessing=Preprocessing,
    augmentation=Augmentation,
)
