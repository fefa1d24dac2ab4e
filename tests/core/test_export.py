"""An exported folder is a timm model: the same logits, the same preprocessing, and a card."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from timm.data import create_transform, resolve_model_data_config
from torch import Tensor, nn

from grasp_core.checkpoints import (
    Checkpoint,
    CheckpointInfo,
    Lineage,
    write_checkpoint,
)
from grasp_core.convert import convert_checkpoint
from grasp_core.errors import CheckpointError, CheckpointMismatch, ConfigError
from grasp_core.export import export_folder
from grasp_core.kinds.image.architectures import resolve_preprocessing
from grasp_core.kinds.image.config import Preprocessing, PreprocessingOverrides
from grasp_core.kinds.image.export import crop_pct
from grasp_core.provenance import Provenance
from grasp_core.report import Environment, FoldReport, Metrics, MetricsReport, SplitMetrics
from grasp_core.spec import ModelSpec
from tests.configs import grasp_alone

CLASSES = ("F", "señor | <b>", "猫")
SEEN = Preprocessing(
    image_size=64,
    resize=73,
    interpolation="bilinear",
    mean=(0.1, 0.2, 0.3),
    std=(0.4, 0.5, 0.6),
)


def describe(architecture: str, /, **changes: Any) -> CheckpointInfo:
    info = CheckpointInfo(
        architecture=architecture,
        classes=CLASSES,
        preprocessing=SEEN,
        lineage=Lineage(version=3, parent="a" * 64, source="b" * 64),
    )
    return info.model_copy(update=changes)


def save(path: Path, info: CheckpointInfo, architecture: str, **arguments: Any) -> nn.Module:
    """A model with random weights, and the checkpoint that holds them."""
    model = timm.create_model(architecture, num_classes=3, **arguments).eval()
    write_checkpoint(path, model.state_dict(), info)
    return model


def load(folder: Path) -> nn.Module:
    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()


@torch.inference_mode()
def logits(model: nn.Module, side: int) -> Tensor:
    result: Tensor = model(torch.linspace(-1, 1, 3 * side * side).reshape(1, 3, side, side))
    return result


def card_of(folder: Path) -> str:
    return (folder / "README.md").read_text()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "v3.safetensors"
    save(path, describe("test_resnet"), "test_resnet")
    return path


@pytest.mark.parametrize(
    ("architecture", "arguments"),
    [
        ("test_resnet", {}),
        ("mobilevit_xxs", {}),
        ("test_vit", {"img_size": 64}),
        ("levit_128s", {"img_size": 64}),
    ],
)
def test_timm_loads_the_folder_and_computes_the_same(
    tmp_path: Path, architecture: str, arguments: dict[str, int]
) -> None:
    path = tmp_path / "v3.safetensors"
    model = save(path, describe(architecture), architecture, **arguments)

    folder = export_folder(path, tmp_path / "export" / "timm")

    assert torch.equal(logits(load(folder), 64), logits(model, 64))


@pytest.mark.parametrize("architecture", ["test_resnet", "test_vit"])
def test_timm_prepares_images_as_the_fold_did(tmp_path: Path, architecture: str) -> None:
    path = tmp_path / "v3.safetensors"
    arguments = {"img_size": 64} if architecture == "test_vit" else {}
    save(path, describe(architecture), architecture, **arguments)

    model = load(export_folder(path, tmp_path / "timm"))

    config = resolve_model_data_config(model)
    assert tuple(config["input_size"]) == (3, 64, 64)
    assert tuple(config["mean"]) == SEEN.mean
    assert tuple(config["std"]) == SEEN.std
    assert config["interpolation"] == "bilinear"
    assert config["crop_mode"] == "center"
    assert config["crop_pct"] == pytest.approx(64 / 73)
    assert create_transform(**config).transforms[0].size == 73
    assert resolve_model_data_config(model, use_test_size=True) == config


def test_the_cards_recipe_works(checkpoint: Path, tmp_path: Path) -> None:
    folder = export_folder(checkpoint, tmp_path / "timm")
    Image.new("L", (90, 70), 128).save(tmp_path / "image.png")
    recipe = card_of(folder).split("```")[1].removeprefix("python\n")
    recipe = recipe.replace("/path/to/this/folder", str(folder))
    recipe = recipe.replace("image.png", str(tmp_path / "image.png"))
    printed: list[str] = []

    exec(recipe, {"print": printed.append})

    assert printed[0] in CLASSES


def test_a_model_that_says_no_preprocessing_has_the_architectures_own(tmp_path: Path) -> None:
    path = tmp_path / "v3.safetensors"
    save(path, describe("test_vit", preprocessing=None), "test_vit")

    model = load(export_folder(path, tmp_path / "timm"))

    own = resolve_preprocessing(ModelSpec(architecture="test_vit", classes=CLASSES))
    assert tuple(resolve_model_data_config(model)["input_size"]) == (3, 160, 160)
    assert create_transform(**resolve_model_data_config(model)).transforms[0].size == own.resize


@given(st.integers(8, 4096), st.floats(0.05, 1.0))
def test_timm_resizes_to_the_very_pixel(image_size: int, ratio: float) -> None:
    resize = min(8192, max(image_size, round(image_size / ratio)))
    seen = Preprocessing(image_size=image_size, resize=resize)

    assert int(image_size / crop_pct(seen)) == resize
    assert crop_pct(seen) == pytest.approx(image_size / resize)


def test_a_ratio_that_floats_cannot_divide_back_is_nudged() -> None:
    sizes = [(size, resize) for size in range(8, 300) for resize in range(size, 2 * size)]
    unlucky = [(size, resize) for size, resize in sizes if int(size / (size / resize)) != resize]

    assert unlucky
    for size, resize in unlucky:
        assert int(size / crop_pct(Preprocessing(image_size=size, resize=resize))) == resize


def test_nothing_of_timms_own_weights_is_claimed(tmp_path: Path) -> None:
    path = tmp_path / "v3.safetensors"
    save(path, describe("mobilevit_xxs.cvnets_in1k"), "mobilevit_xxs")

    folder = export_folder(path, tmp_path / "timm")

    config = json.loads((folder / "config.json").read_text())
    assert config["architecture"] == "mobilevit_xxs"
    assert config["num_classes"] == config["pretrained_cfg"]["num_classes"] == 3
    assert config["label_names"] == list(CLASSES)
    assert config["pretrained_cfg"]["classifier"] == "head.fc"
    strange = {"url", "hf_hub_id", "tag", "license", "label_offset", "test_input_size"}
    assert strange & set(config["pretrained_cfg"]) == set()


def test_labels_reach_the_loaded_model(checkpoint: Path, tmp_path: Path) -> None:
    model = load(export_folder(checkpoint, tmp_path / "timm"))

    config = getattr(model, "pretrained_cfg")  # noqa: B009
    assert config["label_names"] == list(CLASSES)


def test_the_weights_are_a_copy_of_the_same_bytes(checkpoint: Path, tmp_path: Path) -> None:
    folder = export_folder(checkpoint, tmp_path / "timm")

    exported = folder / "model.safetensors"
    assert exported.read_bytes() == checkpoint.read_bytes()
    assert not exported.samefile(checkpoint)
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]


def test_exporting_again_replaces_what_was_there(checkpoint: Path, tmp_path: Path) -> None:
    folder = export_folder(checkpoint, tmp_path / "timm", name="old")

    export_folder(checkpoint, folder, name="new")

    assert "# new\n" in card_of(folder)
    assert "# old\n" not in card_of(folder)


def test_a_converted_checkpoint_can_be_exported(tmp_path: Path) -> None:
    spec = ModelSpec(
        architecture="test_vit",
        classes=CLASSES,
        preprocessing=PreprocessingOverrides(image_size=96),
    )
    model = timm.create_model("test_vit", num_classes=3, img_size=96).eval()
    torch.save({"state_dict": model.half().state_dict()}, tmp_path / "a.pt")
    convert_checkpoint(tmp_path / "a.pt", tmp_path / "a.safetensors", spec=spec)

    folder = export_folder(tmp_path / "a.safetensors", tmp_path / "timm")

    assert torch.equal(logits(load(folder), 96), logits(model.float(), 96))
    assert "folded into it" not in card_of(folder)  # nothing was merged yet
    assert "## Provenance" not in card_of(folder)


@pytest.mark.parametrize(
    ("missing", "said"), [("architecture", "architecture"), ("classes", "class names")]
)
def test_a_checkpoint_that_does_not_say_what_it_is_is_refused(
    tmp_path: Path, missing: str, said: str
) -> None:
    path = tmp_path / "foreign.safetensors"
    save(path, describe("test_resnet", **{missing: None}), "test_resnet")

    with pytest.raises(CheckpointError, match=rf"foreign\.safetensors does not say its {said} "):
        export_folder(path, tmp_path / "timm")

    assert not (tmp_path / "timm").exists()


def test_a_checkpoint_that_is_not_what_it_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "v3.safetensors"
    save(path, describe("test_efficientnet"), "test_resnet")

    with pytest.raises(CheckpointMismatch):
        export_folder(path, tmp_path / "timm")

    assert not (tmp_path / "timm").exists()


# The card


def test_the_card_says_what_the_model_is(checkpoint: Path, tmp_path: Path) -> None:
    card = card_of(export_folder(checkpoint, tmp_path / "timm", name="faces"))

    front, body = card.removeprefix("---\n").split("---\n", maxsplit=1)
    assert "library_name: timm\n" in front
    assert "- image-classification\n" in front
    assert body.startswith("\n# faces\n")
    assert "timm's `test_resnet`" in body
    assert "Checkpoints from several sources were folded into it, one at a time." in body
    assert "| shorter side resized to | 73 (bilinear) |" in body
    assert "| centre crop | 64 × 64 |" in body
    assert "| version | 3 |" in body
    assert f"| sha256 | {Checkpoint(checkpoint).sha256} |" in body
    assert f"| parent | {'a' * 64} |" in body
    assert f"| source folded in | {'b' * 64} |" in body
    assert "## Metrics" not in body
    assert "Not in timm's config" not in body


def test_class_names_cannot_break_the_card(checkpoint: Path, tmp_path: Path) -> None:
    card = card_of(export_folder(checkpoint, tmp_path / "timm", name="a\n# b"))

    assert "| 1 | señor \\| \\<b\\> |\n" in card
    assert "| 2 | 猫 |\n" in card
    assert "# a \\# b\n" in card


@pytest.mark.parametrize(
    ("change", "said"), [("grayscale", "luminance"), ("contrast", "stretched in contrast")]
)
def test_what_timm_cannot_express_is_said(tmp_path: Path, change: str, said: str) -> None:
    path = tmp_path / "v3.safetensors"
    seen = SEEN.model_copy(update={change: True})
    save(path, describe("test_resnet", preprocessing=seen), "test_resnet")

    card = card_of(export_folder(path, tmp_path / "timm"))

    assert "**Not in timm's config:**" in card
    assert [word for word in ("luminance", "stretched in contrast") if word in card] == [said]


def test_the_card_sums_up_who_gave_how_much(tmp_path: Path) -> None:
    model = timm.create_model("test_resnet", num_classes=3)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    shares = {name: {"small": 0.1, "large": 0.6} for name in sizes}
    path = tmp_path / "v3.safetensors"
    info = describe("test_resnet", provenance=Provenance(shares=shares))
    write_checkpoint(path, model.state_dict(), info)

    card = card_of(export_folder(path, tmp_path / "timm"))

    assert "| large | 60.00% |\n| small | 10.00% |\n" in card


def make_metrics(accuracy: float, auroc: float | None = 0.75) -> Metrics:
    return Metrics(
        count=50,
        accuracy=accuracy,
        per_class_accuracy={},
        per_class_count={},
        precision=0.5,
        recall=0.5,
        f1=0.5,
        auroc=auroc,
        log_likelihood=-0.5,
        confusion_matrix=[],
    )


def make_report(sha256: str | None, *, first: bool = False) -> FoldReport:
    before = SplitMetrics(val=make_metrics(0.61), test=make_metrics(0.62))
    after = SplitMetrics(val=make_metrics(0.71), test=make_metrics(0.72, auroc=None))
    return FoldReport(
        outcome="accepted",
        spec=ModelSpec(architecture="test_resnet", classes=CLASSES).model_dump(mode="json"),
        config=grasp_alone().model_dump(mode="json"),
        seed=0,
        version=3,
        parent="a" * 64,
        source="b" * 64,
        sha256=sha256,
        metrics=MetricsReport(before=None if first else before, after=after),
        environment=Environment(python="3", libraries={}, device="cpu", threads=1, autocast=None),
    )


def test_the_card_shows_the_folds_metrics(checkpoint: Path, tmp_path: Path) -> None:
    report = make_report(Checkpoint(checkpoint).sha256)

    card = card_of(export_folder(checkpoint, tmp_path / "timm", report=report))

    assert "by `grasp` ([paper](https://arxiv.org/abs/2606.14900)): Copies" in card
    assert "|  | validation, before | validation | test, before | test |\n" in card
    assert "| images | 50 | 50 | 50 | 50 |\n" in card
    assert "| accuracy | 0.6100 | 0.7100 | 0.6200 | 0.7200 |\n" in card
    assert "| AUROC | 0.7500 | 0.7500 | 0.7500 | undefined |\n" in card


def test_the_card_says_when_the_weights_were_kept(checkpoint: Path, tmp_path: Path) -> None:
    report = make_report(Checkpoint(checkpoint).sha256).model_copy(update={"outcome": "kept"})

    card = card_of(export_folder(checkpoint, tmp_path / "timm", report=report))

    assert "The last fold changed nothing: no candidate was better." in card
    assert "by `grasp`" not in card


def test_a_first_version_has_no_metrics_before(checkpoint: Path, tmp_path: Path) -> None:
    report = make_report(Checkpoint(checkpoint).sha256, first=True)

    card = card_of(export_folder(checkpoint, tmp_path / "timm", report=report))

    assert "by `grasp` ([paper](https://arxiv.org/abs/2606.14900)): Copies" in card
    assert "|  | validation | test |\n" in card
    assert "| accuracy | 0.7100 | 0.7200 |\n" in card


@pytest.mark.parametrize("sha256", ["c" * 64, None])
def test_the_report_of_another_version_is_refused(
    checkpoint: Path, tmp_path: Path, sha256: str | None
) -> None:
    with pytest.raises(ConfigError, match=r"the report is not of v3\.safetensors"):
        export_folder(checkpoint, tmp_path / "timm", report=make_report(sha256))

    assert not (tmp_path / "timm").exists()
