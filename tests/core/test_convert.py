"""Checkpoints as trainers write them become safetensors, and nothing of them is executed."""

import argparse
import pickle
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from grasp_core.architectures import resolve_preprocessing
from grasp_core.checkpoints import Checkpoint, CheckpointInfo
from grasp_core.convert import convert_checkpoint
from grasp_core.errors import CheckpointError, CheckpointMismatch
from grasp_core.kinds.image.config import Preprocessing, PreprocessingOverrides
from grasp_core.memory import PeakMemory, private_bytes
from grasp_core.spec import ModelSpec

MIB = 2**20
SPEC = ModelSpec(architecture="test_resnet", classes=("cat", "dog", "owl"))


def converted(folder: Path, saved: object, **options: Any) -> dict[str, Tensor]:
    """What comes out when `saved` goes in."""
    torch.save(saved, folder / "in.pt")
    convert_checkpoint(folder / "in.pt", folder / "out.safetensors", **options)
    return load_file(folder / "out.safetensors")


def refused(folder: Path, name: str = "in.pt", **options: Any) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        convert_checkpoint(folder / name, folder / "out.safetensors", **options)
    assert not (folder / "out.safetensors").exists()
    return caught.value


def state(value: float = 1.0, prefix: str = "") -> dict[str, Tensor]:
    names = ("fc.weight", "fc.bias")
    return {prefix + name: torch.full((2,), value) for name in names}


def assert_is_state(found: dict[str, Tensor], value: float = 1.0) -> None:
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        "fc.weight": [value] * 2,
        "fc.bias": [value] * 2,
    }


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    model = timm.create_model(SPEC.architecture, num_classes=3)
    return dict(model.state_dict())


# Where the weights are


@pytest.mark.parametrize(
    "saved",
    [
        state(),
        OrderedDict(state()),
        {
            "state_dict": state(),
            "epoch": 3,
            "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}},
        },
        {"model_state_dict": state(), "optimizer_state_dict": {"param_groups": []}},
        {"model": state(), "lr": 0.1, "rng": torch.ones(5)},
        {"model": {"state_dict": state()}},
        {"net": state(), "acc": 0.5},
        state() | {"epoch": 3, 7: torch.ones(1)},
        {"state_dict": state() | {"note": "not a tensor"}},
        {name: nn.Parameter(tensor) for name, tensor in state().items()},
    ],
    ids=[
        "flat",
        "ordered",
        "state_dict",
        "model_state_dict",
        "model",
        "nested",
        "net",
        "flat with more",
        "state_dict with more",
        "parameters",
    ],
)
def test_the_state_dict_is_found(tmp_path: Path, saved: object) -> None:
    assert_is_state(converted(tmp_path, saved))


@pytest.mark.parametrize(
    "averaged",
    [
        {"state_dict_ema": state(2.0)},
        {"model_ema": state(2.0)},
        {"ema_state_dict": state(2.0)},
        {"ema": {"module": state(2.0), "updates": 7}},
        {"model_ema": {"n_averaged": torch.tensor(3), **state(2.0, "module.")}},
    ],
    ids=["timm", "deit", "ema_state_dict", "nested", "torch's AveragedModel"],
)
def test_averaged_weights_are_preferred_unless_they_are_not_wanted(
    tmp_path: Path, averaged: dict[str, Any]
) -> None:
    saved = {"state_dict": state(1.0)} | averaged

    assert_is_state(converted(tmp_path, saved), 2.0)
    assert_is_state(converted(tmp_path, saved, ema=False), 1.0)


@pytest.mark.parametrize(
    "empty", [None, {}, {"decay": 0.99, "shadow_params": [torch.ones(2)]}], ids=str
)
def test_an_average_without_named_tensors_is_passed_over(tmp_path: Path, empty: object) -> None:
    assert_is_state(converted(tmp_path, {"model": state(), "ema": empty}))


def test_only_averaged_weights_are_better_than_none(tmp_path: Path) -> None:
    assert_is_state(converted(tmp_path, {"model_ema": state(2.0)}, ema=False), 2.0)


# What the tensors are called


@pytest.mark.parametrize(
    "prefix",
    [
        "module.",
        "model.",
        "_orig_mod.",
        "net.",
        "module._orig_mod.",
        "_orig_mod.module.",
        "model._orig_mod.module.model.",
        "_fsdp_wrapped_module.",
    ],
)
def test_wrappers_are_stripped_however_many(tmp_path: Path, prefix: str) -> None:
    assert_is_state(converted(tmp_path, {"state_dict": state(prefix=prefix)}))


def test_compiled_submodules_are_called_as_before(tmp_path: Path) -> None:
    saved = {"layer1._orig_mod.0.weight": torch.ones(1), "fc.weight": torch.ones(1)}

    assert set(converted(tmp_path, saved)) == {"layer1.0.weight", "fc.weight"}


def test_without_a_spec_a_prefix_that_not_all_share_stays(tmp_path: Path) -> None:
    saved = state(prefix="model.") | {"criterion.weight": torch.ones(2)}

    assert set(converted(tmp_path, saved)) == set(saved)


def test_a_lone_counter_is_a_tensor_like_any_other(tmp_path: Path) -> None:
    assert set(converted(tmp_path, {"n_averaged": torch.tensor(1)})) == {"n_averaged"}


@pytest.mark.parametrize("prefix", ["", "module.", "model._orig_mod."])
def test_with_a_spec_what_lies_beside_the_wrapped_model_is_left_out(
    tmp_path: Path, weights: dict[str, Tensor], prefix: str
) -> None:
    lightning = {f"model.{prefix}{name}": tensor for name, tensor in weights.items()}
    saved = {"state_dict": lightning | {"criterion.weight": torch.ones(3)}}

    assert set(converted(tmp_path, saved, spec=SPEC)) == set(weights)


def test_with_a_spec_most_of_the_model_decides(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    saved = {f"model.{name}": tensor for name, tensor in weights.items()}
    saved["fc.bias"] = torch.full((3,), 9.0)  # a stray head, beside the model's own

    found = converted(tmp_path, saved, spec=SPEC)

    assert torch.equal(found["fc.bias"], weights["fc.bias"])


# What it is


def test_a_spec_is_checked_and_remembered(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    found = converted(tmp_path, {"state_dict": weights}, spec=SPEC)

    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())
    assert Checkpoint(tmp_path / "out.safetensors").info == CheckpointInfo(
        architecture="test_resnet",
        classes=SPEC.classes,
        preprocessing=resolve_preprocessing(SPEC),
    )


def test_classes_of_its_own_count_for_the_head(tmp_path: Path) -> None:
    five = timm.create_model(SPEC.architecture, num_classes=5).state_dict()
    names = ("cat", "dog", "owl", "fox", "elk")

    converted(tmp_path, five, spec=SPEC, classes=names)

    info = Checkpoint(tmp_path / "out.safetensors").info
    assert (info.architecture, info.classes) == ("test_resnet", names)


@pytest.mark.parametrize("names", [None, ("cat", "dog", "owl")])
def test_an_architecture_has_as_many_outputs_as_its_weights(
    tmp_path: Path, weights: dict[str, Tensor], names: tuple[str, ...] | None
) -> None:
    converted(tmp_path, {"state_dict": weights}, architecture="test_resnet", classes=names)

    assert Checkpoint(tmp_path / "out.safetensors").info == CheckpointInfo(
        architecture="test_resnet", classes=names, preprocessing=resolve_preprocessing(SPEC)
    )


def test_an_architecture_without_classes_is_checked_all_the_same(
    tmp_path: Path, weights: dict[str, Tensor]
) -> None:
    torch.save(weights | {"fc.bias": torch.zeros(2)}, tmp_path / "in.pt")

    error = refused(tmp_path, architecture="test_resnet")

    assert isinstance(error, CheckpointMismatch)
    assert set(error.mismatches.wrong_shape) == {"fc.weight", "fc.bias"}


def test_classes_are_remembered_without_a_spec(tmp_path: Path) -> None:
    converted(tmp_path, state(), classes=["a", "b"])

    info = Checkpoint(tmp_path / "out.safetensors").info
    assert info == CheckpointInfo(classes=("a", "b"))


def test_a_fixed_size_model_is_checked_at_its_image_size(tmp_path: Path) -> None:
    spec = ModelSpec(
        architecture="test_vit",
        classes=SPEC.classes,
        preprocessing=PreprocessingOverrides(image_size=64),
    )
    saved = timm.create_model("test_vit", num_classes=3, img_size=64).state_dict()

    converted(tmp_path, saved, spec=spec)

    preprocessing = Checkpoint(tmp_path / "out.safetensors").info.preprocessing
    assert isinstance(preprocessing, Preprocessing)
    assert preprocessing.image_size == 64


@pytest.mark.parametrize("prefix", ["", "module."])
def test_every_difference_from_the_spec_is_named(
    tmp_path: Path, weights: dict[str, Tensor], prefix: str
) -> None:
    other = weights | {"fc.bias": torch.ones(9), "extra.weight": torch.ones(1)}
    del other["conv1.0.weight"]
    saved = {prefix + name: tensor for name, tensor in other.items()} | {"beside": torch.ones(1)}
    torch.save({"state_dict": saved}, tmp_path / "in.pt")

    error = refused(tmp_path, spec=SPEC)

    assert isinstance(error, CheckpointMismatch)
    assert error.mismatches.missing == ["conv1.0.weight"]
    assert sorted(error.mismatches.unexpected) == ["beside", "extra.weight"]
    assert error.mismatches.wrong_shape == {"fc.bias": ((3,), (9,))}


def test_another_model_is_shown_under_its_own_names(tmp_path: Path) -> None:
    torch.save({"state_dict": state(prefix="module.stem.")}, tmp_path / "in.pt")

    error = refused(tmp_path, spec=SPEC)

    assert isinstance(error, CheckpointMismatch)
    assert error.mismatches.unexpected == ["stem.fc.weight", "stem.fc.bias"]


# What the values are


def test_values_precision_and_layout_survive(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    saved = {
        "half": base.half(),
        "bfloat": base.bfloat16(),
        "count": torch.tensor(7),
        "transposed": base.T,
        "slice": base[:, 1],
        "tied": base,
        "tied again": base,
        "image": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
    }

    found = converted(tmp_path, saved)

    assert set(found) == set(saved)
    for name, tensor in saved.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


def test_the_same_weights_give_the_same_bytes(tmp_path: Path) -> None:
    torch.save({"state_dict": state(), "epoch": 1}, tmp_path / "one.pt")
    torch.save({"model": dict(reversed(state(prefix="module.").items()))}, tmp_path / "two.ckpt")

    one = convert_checkpoint(tmp_path / "one.pt", tmp_path / "one.safetensors", spec=None)
    two = convert_checkpoint(tmp_path / "two.ckpt", tmp_path / "two.safetensors", spec=None)

    assert one == two == Checkpoint(tmp_path / "two.safetensors").sha256


def test_files_from_before_torch_1_6_are_read(tmp_path: Path) -> None:
    saved = {"state_dict": state(), "args": argparse.Namespace(lr=0.1)}
    torch.save(saved, tmp_path / "in.pth", _use_new_zipfile_serialization=False)

    convert_checkpoint(tmp_path / "in.pth", tmp_path / "out.safetensors")

    assert_is_state(load_file(tmp_path / "out.safetensors"))


def test_a_file_may_be_replaced_by_its_conversion(tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "in.pt")

    convert_checkpoint(tmp_path / "in.pt", tmp_path / "in.pt")

    assert_is_state(load_file(tmp_path / "in.pt"))


def test_a_large_file_is_not_loaded_into_memory(tmp_path: Path) -> None:
    # 48 MiB in one: beyond what malloc keeps for later when it is freed
    torch.save({"state_dict": {"t": torch.ones(12 * MIB)}}, tmp_path / "in.pt")
    before = private_bytes()

    with PeakMemory(torch.device("cpu")) as peak:
        convert_checkpoint(tmp_path / "in.pt", tmp_path / "out.safetensors")

    assert (tmp_path / "out.safetensors").stat().st_size > 48 * MIB
    assert peak.bytes - before < 12 * MIB


# What is harmless, and what is refused


def test_plain_data_that_trainers_keep_beside_the_weights_is_read(tmp_path: Path) -> None:
    saved = {
        "state_dict": state(),
        "args": argparse.Namespace(model="resnet50", lr=0.1, out=Path("runs")),
        "best": np.float64(0.93),
        "counts": np.arange(3),
        "flags": [np.bool_(True), np.float32(1), np.int64(2)],
    }

    assert_is_state(converted(tmp_path, saved))


def test_numbers_written_with_numpy_1_are_read(tmp_path: Path) -> None:
    torch.save({"state_dict": state(), "best": np.float64(0.93)}, tmp_path / "new.pt")
    old, new = b"numpy.core.multiarray", b"numpy._core.multiarray"
    content = repack(tmp_path / "new.pt", lambda pickled: pickled.replace(new, old))
    (tmp_path / "in.pt").write_bytes(content)

    convert_checkpoint(tmp_path / "in.pt", tmp_path / "out.safetensors")

    assert_is_state(load_file(tmp_path / "out.safetensors"))


def repack(path: Path, change: Callable[[bytes], bytes]) -> bytes:
    """The torch file at `path` with its pickle changed, as torch itself would pack it."""
    again = path.with_suffix(".repacked")
    with zipfile.ZipFile(path) as archive:
        writer = torch._C.PyTorchFileWriter(str(again))
        for name in archive.namelist():
            record = name.partition("/")[2]
            content = archive.read(name)
            if record == "data.pkl":
                content = change(content)
            if record not in {"version", ".data/serialization_id"}:
                writer.write_record(record, content, len(content))
        writer.write_end_of_file()
    return again.read_bytes()


class Trap:
    """Tells whether it was unpickled."""

    sprung = False

    def __reduce__(self) -> tuple[Any, ...]:
        return spring, ()


def spring() -> None:
    Trap.sprung = True


@pytest.mark.parametrize("zipped", [True, False])
def test_pickled_objects_are_refused_and_not_run(tmp_path: Path, zipped: bool) -> None:
    saved = {"state_dict": state(), "callback": Trap()}
    torch.save(saved, tmp_path / "in.pt", _use_new_zipfile_serialization=zipped)

    error = refused(tmp_path)

    assert not Trap.sprung
    assert "spring" in error.message
    assert "running code" in error.message
    assert error.hint is not None
    assert "torch.save(model.state_dict()" in error.hint


def test_a_whole_pickled_model_is_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "in.pt")

    assert "torch.nn.modules.linear.Linear" in refused(tmp_path).message


def test_a_global_that_is_not_named_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(state(), tmp_path / "in.pt")

    def refuse(*_: object, **__: object) -> None:
        raise pickle.UnpicklingError("Unsupported operand 149")

    monkeypatch.setattr(torch, "load", refuse)

    assert "pickled objects" in refused(tmp_path).message


def test_a_torchscript_program_is_refused(tmp_path: Path) -> None:
    with warnings.catch_warnings(action="ignore"):  # torch.jit is deprecated
        torch.jit.save(torch.jit.script(nn.Linear(2, 2)), str(tmp_path / "in.pt"))

    assert "TorchScript" in refused(tmp_path).message


@pytest.mark.parametrize(
    "content",
    [b"", b"hello world, this is no checkpoint", b"<html>404</html>", bytes(range(256)) * 40],
    ids=["empty", "text", "html", "noise"],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "in.pt").write_bytes(content)

    assert refused(tmp_path).message == "in.pt is not a torch checkpoint"


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "whole.pt")
    content = (tmp_path / "whole.pt").read_bytes()
    (tmp_path / "in.pt").write_bytes(content[: len(content) // 2])

    assert "copied whole" in str(refused(tmp_path))


def test_another_zip_file_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "in.pt", "w") as archive:
        archive.writestr("faces/a.png", b"")

    assert refused(tmp_path).message == "in.pt is not a torch checkpoint"


def test_a_plain_pickle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.pt").write_bytes(pickle.dumps({"a": 1}))

    assert refused(tmp_path).message == "in.pt is not a torch checkpoint"


def test_a_safetensors_file_needs_no_conversion(tmp_path: Path) -> None:
    save_file(state(), tmp_path / "in.safetensors")

    assert refused(tmp_path, "in.safetensors").message == "in.safetensors is safetensors already"


def test_a_missing_file_is_an_error_of_its_own(tmp_path: Path) -> None:
    assert refused(tmp_path).message == "cannot read in.pt: No such file or directory"


@pytest.mark.parametrize(
    "saved",
    [{}, {"epoch": 3}, [torch.ones(1)], torch.ones(1), {"my_model": state()}],
    ids=["empty", "no tensors", "list", "tensor", "unknown key"],
)
def test_a_file_without_weights_is_refused(tmp_path: Path, saved: object) -> None:
    torch.save(saved, tmp_path / "in.pt")

    assert "holds no weights" in refused(tmp_path).message


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, dtype=torch.complex64),
        torch.eye(2).to_sparse(),
        torch.ones(2, device="meta"),
    ],
    ids=["complex", "sparse", "meta"],
)
def test_tensors_that_cannot_be_stored_are_named(tmp_path: Path, tensor: Tensor) -> None:
    torch.save(state() | {"odd": tensor}, tmp_path / "in.pt")

    error = refused(tmp_path)

    assert "cannot hold: odd (" in error.message
    assert "fc" not in error.message
