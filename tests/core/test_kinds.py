"""Kinds of problems: declared as data, found by name, and their parameters told apart."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import Field, ValidationError

from grasp_core import CheckpointInfo, ConfigError, ModelSpec, fold
from grasp_core.checkpoints import METADATA_KEY, Checkpoint, write_safetensors
from grasp_core.config import Frozen
from grasp_core.errors import CheckpointError
from grasp_core.kinds import (
    KINDS,
    Implementation,
    Kind,
    check_augmentation,
    find_kind,
    read_options,
)
from grasp_core.kinds.image.config import Augmentation, Preprocessing, PreprocessingOverrides
from grasp_core.operations import PrepareModel
from grasp_core.parameters import parse_config
from tests.core.toy import TINY, ToyTask, save, tiny_weights

IMAGE = KINDS["image"]


class Pitch(Frozen):
    lowest: int = Field(20, ge=1)


def no_implementation() -> Implementation:
    raise AssertionError("nobody computes here")


SOUND = Kind(
    name="sound",
    summary="Sounds.",
    examples="sounds",
    formats="a zip",
    architectures="any",
    load=no_implementation,
    overrides=Pitch,
    preprocessing=Pitch,
)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    KINDS.forget()
    yield
    KINDS.forget()


@pytest.fixture
def sound(monkeypatch: pytest.MonkeyPatch) -> Kind:
    monkeypatch.setitem(KINDS, "sound", SOUND)
    return SOUND


def wrong(act: Callable[[], object]) -> dict[str, str]:
    with pytest.raises(ValidationError) as caught:
        act()
    return {".".join(map(str, error["loc"])): error["msg"] for error in caught.value.errors()}


def test_a_kind_is_found_by_name(sound: Kind) -> None:
    assert find_kind("sound") is sound
    assert find_kind("image") is IMAGE
    with pytest.raises(ConfigError) as caught:
        find_kind("smell")
    assert str(caught.value) == "there is no kind 'smell' (there are image, sound)"


def test_a_spec_has_the_overrides_of_its_kind(sound: Kind) -> None:
    image = ModelSpec(architecture="a", classes=("x",), preprocessing={"image_size": 64})
    heard = ModelSpec(kind="sound", architecture="a", classes=("x",))

    assert image.preprocessing == PreprocessingOverrides(image_size=64)
    assert heard.preprocessing == Pitch()
    for spec in (image, heard):
        assert ModelSpec.model_validate_json(spec.model_dump_json()) == spec
        assert pickle.loads(pickle.dumps(spec)) == spec
        assert type(spec.preprocessing).__name__ in repr(spec)


def test_what_a_spec_cannot_be_is_named(sound: Kind) -> None:
    def spec(**given: object) -> Callable[[], object]:
        return lambda: ModelSpec.model_validate(
            {"architecture": "a", "classes": ["x"], "kind": "sound", **given}
        )

    assert wrong(spec(kind="smell")) == {
        "kind": "Value error, there is no kind 'smell': there are image, sound"
    }
    assert wrong(spec(preprocessing={"image_size": 8, "loud": 1, "lowest": 5})) == {
        "preprocessing.image_size": "sound has no such parameter; it is one of image",
        "preprocessing.loud": "sound has no such parameter",
    }
    assert wrong(spec(preprocessing={"lowest": 0})) == {
        "preprocessing.lowest": "Input should be greater than or equal to 1"
    }
    assert "preprocessing" in wrong(spec(preprocessing=5))
    assert "preprocessing.image_size" in wrong(
        spec(preprocessing=PreprocessingOverrides(image_size=8))
    )


def test_augmentation_is_filled_in_and_judged_by_the_kind(sound: Kind) -> None:
    given = parse_config({"refine": {"augmentation": {"flip": False}}})

    whole = check_augmentation(given, IMAGE)

    assert whole.refine.augmentation == {"flip": False, "padding": None}
    assert check_augmentation(whole, IMAGE) == whole
    assert wrong(lambda: check_augmentation(given, sound)) == {
        "flip": "sound has no such parameter; it is one of image"
    }
    assert check_augmentation(parse_config({}), sound).refine.augmentation == {}


def test_a_fold_refuses_what_its_kind_lacks_before_it_computes(tmp_path: Path) -> None:
    source = save(tmp_path / "source.safetensors", tiny_weights(1))
    config = parse_config({"refine": {"augmentation": {"noise": 1}}})

    told = wrong(lambda: fold(TINY, source, ToyTask(), tmp_path / "v1", config=config))

    assert told == {"noise": "image has no such parameter"}
    assert not (tmp_path / "v1").exists()


def test_a_report_says_all_of_the_augmentation(tmp_path: Path) -> None:
    source = save(tmp_path / "source.safetensors", tiny_weights(1))
    config = parse_config({"refine": {"epochs": 0}, "gate": {"max_drop": 1}})

    report = fold(TINY, source, ToyTask(), tmp_path / "v1", config=config)

    assert parse_config(report.config).refine.augmentation == Augmentation().model_dump()
    assert report.spec["kind"] == "image"
    assert "timm" in report.environment.libraries


def test_a_checkpoint_of_images_says_no_kind_as_it_never_did() -> None:
    seen = Preprocessing(image_size=64, resize=64)
    info = CheckpointInfo(architecture="a", classes=("x",), preprocessing=seen)

    said = info.model_dump_json(exclude_defaults=True)

    assert said == (
        '{"architecture":"a","classes":["x"],"preprocessing":{"image_size":64,"resize":64}}'
    )
    assert CheckpointInfo.model_validate_json(said) == info


def test_a_checkpoint_of_another_kind_says_which(sound: Kind) -> None:
    info = CheckpointInfo(kind="sound", architecture="a", preprocessing=Pitch(lowest=9))

    assert CheckpointInfo.model_validate_json(info.model_dump_json(exclude_defaults=True)) == info


def test_a_checkpoint_of_a_kind_that_is_not_installed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sound.safetensors"
    write_safetensors(path, tiny_weights(1), {METADATA_KEY: '{"kind": "sound"}'})

    with pytest.raises(CheckpointError, match="there is no kind 'sound'"):
        _ = Checkpoint(path).info


def test_a_model_of_a_lost_kind_is_not_prepared(tmp_path: Path) -> None:
    lost = PrepareModel(
        kind="sound",
        architecture="a",
        classes=None,
        preprocessing={},
        files={"target": tmp_path},
        target_fingerprint="f",
        target_classes=("x", "y"),
        cache_dir=tmp_path,
    )

    with pytest.raises(ConfigError, match="there is no kind 'sound'"):
        lost.run(lambda *_: None)


def test_options_are_of_the_kinds_own_class() -> None:
    assert read_options(IMAGE, "overrides", {"image_size": 8}) == PreprocessingOverrides(
        image_size=8
    )
    assert read_options(SOUND, "augmentation", {}) == Frozen()


# Entry points


def write_package(folder: Path, name: str, code: str, group: str = "grasp.kinds") -> None:
    """A package as pip leaves it, with an entry point."""
    (folder / f"{name}.py").write_text(code)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\nsound = {name}:SOUND\n")


DECLARED = """
from grasp_core.kinds import Kind

SOUND = Kind("sound", "Sounds.", "sounds", "a zip", "any", load=lambda: None)
"""


def run(folder: Path, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{folder}:{Path(__file__).parents[2]}"},
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("first", ["import sounds_of_earth", "import grasp_core.kinds"])
def test_another_package_adds_a_kind_whoever_is_imported_first(tmp_path: Path, first: str) -> None:
    write_package(tmp_path, "sounds_of_earth", DECLARED)

    told = run(
        tmp_path,
        f"{first}\nfrom grasp_core.kinds import KINDS\nimport sys\n"
        "print(*KINDS, 'torch' in sys.modules)",
    )

    assert told.split() == ["image", "sound", "False"]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("SOUND = 5", "sounds_of_earth:SOUND of sounds_of_earth is no Kind"),
        ("1 / 0", "'sound' of sounds_of_earth cannot be loaded: ZeroDivisionError"),
        ("", "'sound' of sounds_of_earth cannot be loaded: AttributeError"),
    ],
)
def test_a_broken_package_is_left_out_and_named(tmp_path: Path, code: str, told: str) -> None:
    write_package(tmp_path, "sounds_of_earth", code)

    said = run(
        tmp_path,
        "from grasp_core.kinds import KINDS, find_kind\n"
        "print(*KINDS, len(KINDS), 'sound' in KINDS, KINDS.get('sound'), find_kind('image').name)\n"
        "find_kind('sound')",
    )

    assert "image 1 False None image" in said
    assert said.count(f"RuntimeWarning: {told}") == 1
    assert said.splitlines()[-1].startswith(f"grasp_core.errors.Unloadable: {told}")


def test_a_broken_package_is_a_warning_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path, "sounds_of_mars", "1 / 0")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.warns(RuntimeWarning, match="repair or uninstall sounds_of_mars") as warned:
        assert [*KINDS] == [*KINDS] == ["image"]
    for _ in range(2):
        with pytest.raises(ConfigError, match="'sound' of sounds_of_mars cannot be loaded") as told:
            find_kind("sound")
        assert isinstance(told.value.__cause__, ZeroDivisionError)
    with pytest.raises(ConfigError, match="there is no kind 'smell'"):
        find_kind("smell")

    assert len(warned) == 1
    KINDS["sound"] = SOUND
    assert find_kind("sound") is SOUND
