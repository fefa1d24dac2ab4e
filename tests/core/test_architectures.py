"""timm architectures: described without weights, built without downloads, filled without copies."""

import socket
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.data import resolve_data_config

from grasp_core.architectures import (
    build_model,
    load_weights,
    make_manifest,
)
from grasp_core.checkpoints import ALIGNMENT, DTYPES, Checkpoint, CheckpointInfo, write_checkpoint
from grasp_core.errors import ArchitectureError
from grasp_core.kinds.image.architectures import (
    model_arguments,
    pretrained_config,
    resolve_preprocessing,
)
from grasp_core.kinds.image.config import PreprocessingOverrides
from grasp_core.memory import private_bytes
from grasp_core.spec import ModelSpec

MIB = 2**20
CPU = torch.device("cpu")
PAPER = {  # the paper's four, with the name of their head
    "mobilevit_xxs": "head.fc",
    "mobilevit_xs": "head.fc",
    "efficientnet_b1": "classifier",
    "resnet50": "fc",
}


def make_spec(
    architecture: str, classes: int = 3, preprocessing: PreprocessingOverrides | None = None
) -> ModelSpec:
    return ModelSpec(
        architecture=architecture,
        classes=tuple(f"class {i}" for i in range(classes)),
        preprocessing=preprocessing or PreprocessingOverrides(),
    )


def save_timm(path: Path, architecture: str, **arguments: Any) -> torch.nn.Module:
    """timm's own model with random weights, and those weights in a file."""
    model = timm.create_model(architecture, **arguments).eval()
    write_checkpoint(path, model.state_dict(), CheckpointInfo())
    return model


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Whatever tried to reach the network."""
    calls: list[object] = []

    def refuse(*arguments: object, **_: object) -> None:
        calls.append(arguments)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return calls


@pytest.mark.parametrize(("architecture", "head"), PAPER.items())
def test_the_manifest_is_what_a_real_model_stores(architecture: str, head: str) -> None:
    manifest = make_manifest(make_spec(architecture, classes=7))

    model = timm.create_model(architecture, num_classes=7)
    parameters = dict(model.named_parameters())
    assert list(manifest.tensors) == list(model.state_dict())
    for name, tensor in model.state_dict().items():
        spec = manifest.tensors[name]
        assert spec.shape == tuple(tensor.shape), name
        assert spec.dtype == DTYPES[tensor.dtype], name
        assert (spec.kind == "parameter") == (name in parameters), name
    assert manifest.heads() == {f"{head}.weight", f"{head}.bias"}
    assert (manifest.architecture, manifest.classes) == (architecture, 7)


def test_a_manifest_allocates_no_weights() -> None:
    make_manifest(make_spec("test_vit"))  # what is imported and cached once
    before = private_bytes()

    manifest = make_manifest(make_spec("vit_large_patch16_224"))

    weights = sum(4 * torch.Size(spec.shape).numel() for spec in manifest.tensors.values())
    assert weights > 1000 * MIB
    assert private_bytes() - before < 50 * MIB


def test_a_layer_as_wide_as_the_classes_are_many_is_no_head() -> None:
    width = make_manifest(make_spec("test_resnet")).tensors["layer1.0.conv1.weight"].shape[0]

    manifest = make_manifest(make_spec("test_resnet", classes=width))

    assert manifest.tensors["layer1.0.conv1.weight"].shape[0] == width
    assert manifest.heads() == {"fc.weight", "fc.bias"}


def test_a_model_with_two_heads_has_both_matched() -> None:
    manifest = make_manifest(make_spec("deit_tiny_distilled_patch16_224"))

    assert manifest.heads() == {
        "head.weight",
        "head.bias",
        "head_dist.weight",
        "head_dist.bias",
    }


def test_an_unknown_name_suggests_close_ones() -> None:
    with pytest.raises(ArchitectureError, match=r"no model named 'mobilvit_xxs'.*mobilevit_xxs"):
        make_manifest(make_spec("mobilvit_xxs"))


def test_a_name_like_no_other_points_to_the_list() -> None:
    with pytest.raises(ArchitectureError, match=r"list_models"):
        build_model(make_spec("qqqqqqqqqqqqqq"))


def test_an_unknown_tag_is_an_unknown_architecture() -> None:
    with pytest.raises(ArchitectureError, match=r"'resnet50\.nobody_in1k'"):
        make_manifest(make_spec("resnet50.nobody_in1k"))


def test_what_timm_cannot_build_says_why() -> None:
    odd = make_spec("twins_svt_small", preprocessing=PreprocessingOverrides(image_size=8))

    with pytest.raises(ArchitectureError, match=r"timm cannot build twins_svt_small: img_size"):
        make_manifest(odd)


@pytest.mark.skipif(
    not timm.is_model("gemma4_vit_167m_enc"), reason="models of older timms all have a classifier"
)
def test_a_model_without_a_classifier_is_refused() -> None:
    with pytest.raises(ArchitectureError, match="has no classifier"):
        make_manifest(make_spec("gemma4_vit_167m_enc"))


@pytest.mark.parametrize("scheme", ["hf-hub:timm/resnet10t.c3_in1k", "hf_hub:a/b", "local-dir:/"])
def test_names_of_places_are_unknown_and_nobody_is_asked(
    scheme: str, offline: list[object]
) -> None:
    for use in (make_manifest, build_model, resolve_preprocessing):
        with pytest.raises(ArchitectureError, match="no model named"):
            use(make_spec(scheme))

    assert offline == []


def test_known_names_are_built_without_the_network(offline: list[object]) -> None:
    build_model(make_spec("resnet10t.c3_in1k"))

    assert offline == []


def test_a_model_is_built_without_weights() -> None:
    model = build_model(make_spec("test_resnet"))

    assert all(tensor.is_meta for tensor in model.state_dict().values())


def test_loaded_parameters_are_the_mapped_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_timm(path, "test_resnet", num_classes=3)
    weights = dict(Checkpoint(path))
    model = build_model(make_spec("test_resnet"))

    load_weights(model, weights, CPU)

    for name, parameter in model.named_parameters():
        assert parameter.data_ptr() == weights[name].data_ptr(), name
        assert parameter.requires_grad, name


def test_loaded_buffers_are_copies_since_training_writes_to_them(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_timm(path, "test_resnet", num_classes=3)
    weights = dict(Checkpoint(path))
    model = build_model(make_spec("test_resnet"))
    load_weights(model, weights, CPU)

    model.train()(torch.ones(2, 3, 32, 32))

    assert model.get_buffer("bn1.num_batches_tracked") == 1
    assert weights["bn1.num_batches_tracked"] == 0
    assert not torch.equal(model.get_buffer("bn1.running_var"), weights["bn1.running_var"])


def test_loading_costs_no_private_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    state = make_manifest(make_spec("resnet18")).tensors
    zeros = {
        name: torch.zeros(spec.shape, dtype=torch.float32 if spec.dtype == "F32" else torch.int64)
        for name, spec in state.items()
    }
    write_checkpoint(path, zeros, CheckpointInfo())
    del zeros
    model = build_model(make_spec("resnet18"))
    before = private_bytes()

    load_weights(model, Checkpoint(path), CPU)
    total = sum(
        float(parameter.detach().sum()) for parameter in model.parameters()
    )  # touch all pages

    assert total == 0
    assert path.stat().st_size > 40 * MIB
    assert private_bytes() - before < 8 * MIB


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_float_precision_becomes_float32(dtype: torch.dtype) -> None:
    spec = make_spec("test_resnet")
    weights = timm.create_model("test_resnet", num_classes=3).to(dtype).state_dict()
    model = build_model(spec)

    load_weights(model, weights, CPU)

    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert torch.equal(model.get_parameter("fc.weight"), weights["fc.weight"].float())
    assert model.get_buffer("bn1.num_batches_tracked").dtype == torch.int64


def test_a_missing_step_counter_becomes_zero() -> None:
    weights = timm.create_model("test_resnet", num_classes=3).state_dict()
    weights = {name: t for name, t in weights.items() if not name.endswith("num_batches_tracked")}
    model = build_model(make_spec("test_resnet"))

    load_weights(model, weights, CPU)

    counter = model.get_buffer("bn1.num_batches_tracked")
    assert (counter.item(), counter.dtype) == (0, torch.int64)


@pytest.mark.parametrize(
    ("architecture", "side"),
    [("test_resnet", 64), ("mobilevit_xxs", 64), ("eva02_tiny_patch14_224", 224)],
)
def test_a_loaded_model_computes_what_timms_own_does(
    tmp_path: Path, architecture: str, side: int
) -> None:
    path = tmp_path / "a.safetensors"
    theirs = save_timm(path, architecture, num_classes=3)
    ours = build_model(make_spec(architecture)).eval()

    load_weights(ours, Checkpoint(path), CPU, exact=True)

    image = torch.rand(1, 3, side, side)
    with torch.inference_mode():
        assert torch.equal(ours(image), theirs(image))


def test_exact_results_need_tensors_that_lie_where_an_allocation_would() -> None:
    data = torch.zeros(ALIGNMENT + 3)
    weights = timm.create_model("test_resnet", num_classes=3).state_dict()
    weights["fc.bias"] = data[1:4]  # four bytes off
    plain, exact = build_model(make_spec("test_resnet")), build_model(make_spec("test_resnet"))

    load_weights(plain, weights, CPU)
    load_weights(exact, weights, CPU, exact=True)

    assert plain.get_parameter("fc.bias").data_ptr() == weights["fc.bias"].data_ptr()
    assert exact.get_parameter("fc.bias").data_ptr() % ALIGNMENT == 0
    assert exact.get_parameter("fc.weight").data_ptr() == weights["fc.weight"].data_ptr()


def test_buffers_that_no_checkpoint_holds_are_computed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    theirs = save_timm(path, "efficientformerv2_s0", num_classes=3)
    ours = build_model(make_spec("efficientformerv2_s0"))
    stored = set(ours.state_dict())

    load_weights(ours, Checkpoint(path), CPU, exact=True)

    expected = dict(theirs.named_buffers())
    computed = {name: b for name, b in ours.named_buffers() if name not in stored}
    assert computed
    for name, buffer in computed.items():
        assert torch.equal(buffer, expected[name]), name
    image = torch.rand(1, 3, 224, 224)
    with torch.inference_mode():
        assert torch.equal(ours.eval()(image), theirs(image))


def test_a_fixed_size_model_is_built_for_another_image_size(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    theirs = save_timm(path, "test_vit", num_classes=3, img_size=64)
    spec = make_spec("test_vit", preprocessing=PreprocessingOverrides(image_size=64))

    make_manifest(spec).require(Checkpoint(path).found, name="a")
    ours = build_model(spec).eval()
    load_weights(ours, Checkpoint(path), CPU, exact=True)

    image = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        assert torch.equal(ours(image), theirs(image))


@pytest.mark.parametrize(
    ("architecture", "size", "expected"),
    [
        ("test_vit", 64, {"img_size": 64}),
        ("test_vit", None, {}),
        ("resnet50", 64, {}),
    ],
)
def test_only_fixed_size_models_are_told_the_image_size(
    architecture: str, size: int | None, expected: dict[str, int]
) -> None:
    spec = make_spec(architecture, preprocessing=PreprocessingOverrides(image_size=size))

    assert model_arguments(spec) == expected


@pytest.mark.parametrize("architecture", PAPER)
def test_preprocessing_is_the_architectures_own(architecture: str) -> None:
    own = resolve_data_config(model=timm.create_model(architecture))

    found = resolve_preprocessing(make_spec(architecture))

    assert (3, found.image_size, found.image_size) == own["input_size"]
    assert found.resize == int(found.image_size / own["crop_pct"])
    assert (found.mean, found.std) == (own["mean"], own["std"])
    assert found.interpolation == own["interpolation"]
    assert (found.grayscale, found.contrast) == (False, False)


def test_each_part_of_the_preprocessing_can_be_replaced() -> None:
    given = PreprocessingOverrides(
        image_size=64,
        crop_pct=0.8,
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 2.0, 3.0),
        grayscale=True,
        contrast=True,
    )

    found = resolve_preprocessing(make_spec("resnet50", preprocessing=given))

    assert (found.image_size, found.resize) == (64, 80)
    assert (found.mean, found.std) == ((0.0, 0.0, 0.0), (1.0, 2.0, 3.0))
    assert (found.grayscale, found.contrast) == (True, True)


def test_a_smaller_image_keeps_the_architectures_crop() -> None:
    given = PreprocessingOverrides(image_size=64)

    found = resolve_preprocessing(make_spec("mobilevit_xxs", preprocessing=given))

    assert found.resize == 71  # floor(64 / 0.9)


def test_a_crop_larger_than_the_image_is_the_image() -> None:
    found = resolve_preprocessing(make_spec("volo_d4_448"))

    assert (found.image_size, found.resize) == (448, 448)  # timm says crop_pct 1.15


def test_an_architecture_for_other_than_squares_asks_for_a_size() -> None:
    oblong = next(
        (
            name
            for name in timm.list_models()
            if len(set(pretrained_config(name)["input_size"][1:])) > 1
        ),
        None,
    )
    if oblong is None:
        pytest.skip("models of older timms are all for squares")
    spec = ModelSpec(architecture=oblong, classes=("a", "b"))

    with pytest.raises(ArchitectureError, match="only squares are prepared") as caught:
        resolve_preprocessing(spec)

    assert caught.value.hint == "give an image_size"
