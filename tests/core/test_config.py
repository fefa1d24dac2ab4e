"""Parameters are checked where they are given, and a preset is only a beginning."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from grasp_core import BrokenExamples, CheckpointMismatch, GraspConfig, GraspError, ModelSpec
from grasp_core.config import MAX_CLASS_NAME, MAX_CLASSES, require_names
from grasp_core.kinds.image.config import Preprocessing
from grasp_core.manifest import Mismatches
from grasp_core.parameters import parse_config
from tests.configs import grasp_alone


def test_the_papers_preset_is_the_authors_code() -> None:
    paper = grasp_alone(preset="paper")

    (method,) = paper.candidates
    assert isinstance(method, GraspConfig)
    assert (method.merged_mode, method.source_mode, paper.norm_stats) == ("train", "eval", "keep")
    assert (paper.alignment_batches, paper.alignment_batch_size) == (1, 32)
    assert (method.tau, method.blend, method.granularity) == (0.3, 1.0, "tensor")
    assert paper.refine.model_dump(include={"epochs", "lr", "weight_decay", "batch_size"}) == {
        "epochs": 3,
        "lr": 5e-5,
        "weight_decay": 0.01,
        "batch_size": 32,
    }


def test_what_is_given_wins_over_the_preset() -> None:
    (method,) = parse_config({"preset": "paper", "tau": 0.9}).candidates
    assert isinstance(method, GraspConfig)
    assert (method.tau, method.merged_mode) == (0.9, "train")


def test_a_configuration_survives_json_with_its_preset() -> None:
    config = grasp_alone(preset="paper", alignment_batches=4)

    assert parse_config(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    "values",
    [
        {"tau": 1.5},
        {"tau": "often"},
        {"blend": -0.1},
        {"granularity": "layer"},
        {"alignment_batches": 0},
        {"preset": "mine"},
        {"taus": 0.3},
        {"refine": {"epoch": 3}},
        {"gate": {"max_drop": 2}},
        {"refine": {"freeze": ["*"] * 257}},
        {"refine": {"freeze": ["x" * 201]}},
        {"refine": {"augmentation": {str(number): 1 for number in range(65)}}},
        {"refine": {"epochs": 1_000_000_000}},
        {"refine": {"patience": 1_000_000_000}},
        {"refine": {"batch_size": 10**9}},
        {"refine": {"lr": 1e9}},
        {"alignment_batches": 10**9},
        {"alignment_batch_size": 10**9},
        {"micro_batch": 10**9},
        {"seed": 10**30},
        {"compile": "x" * 101},
        {"device": "x" * 101},
    ],
    ids=lambda values: str(values)[:60],
)
def test_nonsense_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        parse_config(values)


def test_class_names_must_differ() -> None:
    with pytest.raises(ValidationError, match="given twice: cat"):
        ModelSpec(architecture="resnet50", classes=("cat", "dog", "cat"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image_size": 64, "resize": 32}, "smaller than image_size"),
        ({"image_size": 64, "resize": 64, "std": (1.0, 0.0, 1.0)}, "std must be positive"),
    ],
)
def test_preprocessing_must_be_possible(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Preprocessing.model_validate(values)


@pytest.mark.parametrize("name", ["a\n", "\0", "\x1b[31m", "\x85", "\u2028", "\ud800"])
def test_class_names_fit_into_a_line(name: str) -> None:
    with pytest.raises(ValidationError, match=r"class name|unicode"):
        ModelSpec(architecture="tiny", classes=("cat", name))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([str(number) for number in range(MAX_CLASSES + 1)], "it has 10001 classes"),
        (["x" * (MAX_CLASS_NAME + 1)], "'x+…' is longer than 200 characters"),
        (["a\n"], "control character"),
        (["gpj.\u202eexe"], "control character"),
        (["a\u200b"], "control character"),
    ],
    ids=["many", "long", "a line", "turned around", "hidden"],
)
def test_class_names_that_come_in_have_an_end(names: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        require_names(names)
    require_names([f"{number:05}".ljust(MAX_CLASS_NAME, "x") for number in range(MAX_CLASSES)])


def test_class_names_may_be_of_any_script() -> None:
    names = ("chat été", "кот", "猫", "👩\u200d🚀", "a b")
    assert ModelSpec(architecture="tiny", classes=names).classes == names


def test_errors_cross_processes_whole() -> None:
    """A fold runs in a child process, and its error must come back as it was."""
    mismatches = Mismatches(["a"], [], {"b": ((1,), (2,))}, {})
    about: dict[str, Any] = {"file": "a.safetensors", "architecture": "tiny", "only_head": False}
    error = CheckpointMismatch("does not fit", hint="look", mismatches=mismatches, **about)

    copy = pickle.loads(pickle.dumps(error))

    assert str(copy) == "does not fit (look)"
    assert copy.fields() == {"mismatches": mismatches._asdict(), **about}
    assert copy.code == "checkpoint_mismatch"


def test_every_error_has_a_code_of_its_own() -> None:
    def family(kind: type[GraspError]) -> list[type[GraspError]]:
        return [kind, *(child for sub in kind.__subclasses__() for child in family(sub))]

    ours = [kind for kind in family(GraspError) if kind.__module__.startswith("grasp_core")]
    codes = [kind.code for kind in ours]
    assert BrokenExamples in ours
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("preset", ["none", ["paper"], {"paper": 1}, 3])
def test_what_is_no_preset_is_refused(preset: object) -> None:
    with pytest.raises(ValidationError, match="preset"):
        grasp_alone(**{"preset": preset})
