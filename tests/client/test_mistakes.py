"""Errors in words: from the fields of an answer, whatever its sentences say."""

from types import SimpleNamespace
from typing import Any

import pytest

from grasp_cli.session import explain
from grasp_client import Grasp
from grasp_client.errors import GraspError, refusal

OTHER_WORDS = {"detail": "dit lukt niet", "hint": "probeer het anders"}


def names(*found: str) -> Any:
    return SimpleNamespace(list=lambda: [SimpleNamespace(name=name) for name in found])


@pytest.fixture
def grasp() -> Any:
    return SimpleNamespace(models=names("merged", "other"), targets=names("faces"))


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        ("model", "mergd", "did you mean merged?"),
        ("target", "face", "did you mean faces?"),
        ("target", "xyz", "there are faces"),
        ("job", "job_1", "`grasp jobs` lists those there are"),
    ],
)
def test_what_is_not_there_may_have_another_name(
    grasp: Grasp, kind: str, name: str, hint: str
) -> None:
    missing = {"kind": kind, "name": name}
    error = refusal(404, {"code": "not_found", "missing": missing, **OTHER_WORDS})

    assert explain(error, grasp) == ("dit lukt niet", hint)


def test_what_has_no_name_is_told_as_it_came(grasp: Grasp) -> None:
    error = refusal(
        404, {"code": "not_found", **OTHER_WORDS, "detail": "there is no model 'merge'"}
    )

    assert explain(error, grasp) == ("there is no model 'merge'", "probeer het anders")


@pytest.mark.parametrize("convertible", [True, False])
def test_a_file_of_torch_can_be_converted(grasp: Grasp, convertible: bool) -> None:
    error: GraspError = refusal(
        422, {"code": "invalid_checkpoint", "convertible": convertible, **OTHER_WORDS}
    )

    _, hint = explain(error, grasp)

    assert ("grasp convert" in str(hint)) is convertible


@pytest.mark.parametrize("only_head", [True, False])
def test_another_head_needs_class_names(grasp: Grasp, only_head: bool) -> None:
    shapes = {"head.bias": [[2], [3]]}
    mismatches = {"missing": [], "unexpected": [], "wrong_shape": shapes, "wrong_dtype": {}}
    about = {"file": "a.safetensors", "architecture": "test_vit", "only_head": only_head}
    code = "checkpoint_mismatch"
    error = refusal(422, {"code": code, "mismatches": mismatches, **about, **OTHER_WORDS})

    message, hint = explain(error, grasp)

    assert message == (
        "a.safetensors is not a test_vit checkpoint\n  wrong shape: head.bias [3] instead of [2]"
    )
    assert ("--classes" in str(hint)) is only_head
