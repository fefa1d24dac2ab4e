"""What architectures a kind has, said by what knows no timm."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest

from grasp_core.errors import ArchitectureError
from grasp_core.kinds import find_kind, require_architecture

IMAGE = find_kind("image")
HEAVY = ("timm", "torch", "numpy")


@pytest.mark.parametrize("name", ["resnet18", "resnet18.a1_in1k", "mobilevit_xxs", "test_vit"])
def test_what_timm_has_is_known(name: str) -> None:
    require_architecture(IMAGE, name)  # raises nothing
    assert IMAGE.names is not None
    assert name.partition(".")[0] in IMAGE.names()


@pytest.mark.parametrize("name", ["resnet81x", "resnet", "hf-hub:x/resnet18", "", "."])
def test_what_timm_lacks_is_not(name: str) -> None:
    with pytest.raises(ArchitectureError, match="there is no architecture"):
        require_architecture(IMAGE, name)


def test_a_name_that_is_misspelt_is_answered_with_those_alike() -> None:
    with pytest.raises(ArchitectureError) as caught:
        require_architecture(IMAGE, "mobilvit_xxs")

    assert str(caught.value.hint).startswith("did you mean mobilevit_xxs or ")


def test_of_a_kind_that_lists_no_names_none_is_refused() -> None:
    for name in ("mlp-13-16-8", "resnet18"):
        with pytest.raises(ArchitectureError) if name.startswith("mlp") else nullcontext():
            require_architecture(IMAGE, name)
        require_architecture(replace(IMAGE, names=None), name)  # raises nothing


def test_asking_loads_nothing_heavy() -> None:
    code = (
        "import sys; from grasp_core.kinds import find_kind, require_architecture;"
        " require_architecture(find_kind('image'), 'resnet18');"
        f" print(set({HEAVY}) & set(sys.modules))"
    )

    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert asked.stdout == "set()\n"
