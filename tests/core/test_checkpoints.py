"""Safetensors in and out: exact, deterministic, atomic, and mapped instead of loaded."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from grasp_core.checkpoints import (
    ALIGNMENT,
    DTYPES,
    Checkpoint,
    CheckpointInfo,
    Lineage,
    open_sealed,
    write_checkpoint,
    write_safetensors,
    write_sealed,
    write_streamed,
)
from grasp_core.errors import CheckpointError
from grasp_core.kinds.image.config import Preprocessing
from grasp_core.manifest import Found
from grasp_core.memory import PeakMemory, private_bytes
from grasp_core.provenance import Provenance
from tests.bits import flip_a_bit

MIB = 2**20

INFO = CheckpointInfo(
    architecture="mobilevit_xxs",
    classes=("Frau", "señor", "猫"),
    preprocessing=Preprocessing(image_size=64, resize=73, mean=(0.1, 0.2, 0.3), contrast=True),
    lineage=Lineage(version=3, parent="aa", source="bb"),
    provenance=Provenance(shares={"fc.weight": {"bb": 0.25, "cc": 0.75}}),
)


def all_kinds() -> dict[str, Tensor]:
    """Every dtype, as a matrix, a scalar and an empty tensor."""
    values = torch.arange(12).reshape(3, 4)
    return {
        f"{dtype}.{kind}": tensor.to(dtype)
        for dtype in DTYPES
        for kind, tensor in {
            "matrix": values,
            "scalar": torch.tensor(1),
            "empty": torch.empty(0, 5),
        }.items()
    }


def assert_same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].shape == tensor.shape, name
        assert torch.equal(found[name], tensor), name


def test_every_type_and_shape_comes_back_as_it_was(tmp_path: Path) -> None:
    tensors = all_kinds()

    write_checkpoint(tmp_path / "a.safetensors", tensors, CheckpointInfo())

    assert_same(Checkpoint(tmp_path / "a.safetensors"), tensors)


def test_safetensors_own_reader_sees_the_same(tmp_path: Path) -> None:
    tensors = all_kinds()

    write_checkpoint(tmp_path / "a.safetensors", tensors, INFO)

    assert_same(load_file(tmp_path / "a.safetensors"), tensors)


def test_what_safetensors_own_writer_wrote_can_be_read(tmp_path: Path) -> None:
    tensors = all_kinds()
    save_file(tensors, tmp_path / "a.safetensors")

    checkpoint = Checkpoint(tmp_path / "a.safetensors")

    assert_same(checkpoint, tensors)
    assert checkpoint.info == CheckpointInfo()  # a foreign file says nothing


def test_tensors_lie_in_the_file_as_torch_would_allocate_them(tmp_path: Path) -> None:
    tensors = {
        "a odd": torch.ones(1, dtype=torch.uint8),
        "b half": torch.ones(33, dtype=torch.bfloat16),
        "c wide": torch.ones(3, dtype=torch.int64),
        "d whole": torch.ones(16),
        "e whole": torch.ones(64, dtype=torch.int8),
    }

    write_checkpoint(tmp_path / "a.safetensors", tensors, INFO)

    for name, tensor in Checkpoint(tmp_path / "a.safetensors").items():
        needed = ALIGNMENT if "whole" in name else tensor.itemsize
        assert tensor.data_ptr() % needed == 0, name


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(12.0)[::3],
        torch.arange(3.0)[:, None].expand(3, 4),
        torch.arange(48.0).reshape(2, 3, 4, 2).to(memory_format=torch.channels_last),
        torch.nn.Parameter(torch.arange(3.0)),
    ],
    ids=["transposed", "strided", "expanded", "channels_last", "parameter"],
)
def test_any_memory_layout_is_written_in_reading_order(tmp_path: Path, tensor: Tensor) -> None:
    write_checkpoint(tmp_path / "a.safetensors", {"t": tensor}, INFO)

    assert_same(load_file(tmp_path / "a.safetensors"), {"t": tensor.detach()})


def test_a_tied_tensor_is_written_under_both_names(tmp_path: Path) -> None:
    tied = torch.arange(3.0)

    write_checkpoint(tmp_path / "a.safetensors", {"in": tied, "out": tied}, INFO)

    assert_same(load_file(tmp_path / "a.safetensors"), {"in": tied, "out": tied})


def test_the_description_comes_back(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a.safetensors", {"t": torch.ones(1)}, INFO)

    checkpoint = Checkpoint(tmp_path / "a.safetensors")

    assert checkpoint.info == INFO
    assert checkpoint.metadata["format"] == "pt"  # transformers refuses files without it


def test_class_names_with_control_characters_are_refused(tmp_path: Path) -> None:
    own = {"grasp": '{"classes": ["cat", "\\u001b[31m"]}'}
    save_file({"t": torch.ones(1)}, tmp_path / "a.safetensors", own)

    with pytest.raises(CheckpointError, match="control character"):
        _ = Checkpoint(tmp_path / "a.safetensors").info


def test_the_returned_hash_is_the_files(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"

    sha256 = write_checkpoint(path, all_kinds(), INFO)

    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert Checkpoint(path).sha256 == sha256


def test_the_order_of_the_tensors_does_not_change_the_bytes(tmp_path: Path) -> None:
    tensors = all_kinds()
    turned = dict(reversed(tensors.items()))

    one = write_checkpoint(tmp_path / "one.safetensors", tensors, INFO)
    two = write_checkpoint(tmp_path / "two.safetensors", turned, INFO)

    assert one == two


WRITE = """
import sys
import torch
from grasp_core.checkpoints import CheckpointInfo, write_checkpoint

tensors = {name: torch.ones(2) for name in {"b", "a", "d", "c", "e"}}
info = CheckpointInfo(architecture="tiny", classes=("x", "y"))
print(hash("a"), write_checkpoint(sys.argv[1], tensors, info))
"""


def test_another_process_with_another_hash_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    tensors = {name: torch.ones(2) for name in "abcde"}
    info = CheckpointInfo(architecture="tiny", classes=("x", "y"))
    sha256 = write_checkpoint(tmp_path / "here.safetensors", tensors, info)

    child = subprocess.run(
        [sys.executable, "-c", WRITE, str(tmp_path / "there.safetensors")],
        env=os.environ | {"PYTHONHASHSEED": seed},
        check=True,
        capture_output=True,
        text=True,
    )

    hashed, written = child.stdout.split()
    assert int(hashed) != hash("a")  # the seed does differ
    assert written == sha256


class Breaking(Mapping[str, Tensor]):
    """Tensors whose last one cannot be had once the writing has begun."""

    def __init__(self, path: Path) -> None:
        self.folder = path.parent
        self.writing = False

    def __getitem__(self, name: str) -> Tensor:
        if list(self.folder.glob(".*.tmp")):
            self.writing = True
            if name == "b":
                raise RuntimeError("the device is gone")
        return torch.ones(1000)

    def __iter__(self) -> Iterator[str]:
        return iter("ab")

    def __len__(self) -> int:
        return 2


def test_an_error_in_the_middle_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    before = write_checkpoint(path, {"t": torch.ones(1)}, INFO)
    tensors = Breaking(path)

    with pytest.raises(RuntimeError, match="the device is gone"):
        write_checkpoint(path, tensors, INFO)

    assert tensors.writing
    assert Checkpoint(path).sha256 == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_mapped_file_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, {"t": torch.ones(1000)}, INFO)
    old = Checkpoint(path)

    write_checkpoint(path, {"t": old["t"] * 2}, INFO)

    assert old["t"].sum() == 1000
    assert Checkpoint(path)["t"].sum() == 2000


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", b"\xff" * 100, b"\x80\x02}q\x00."],
    ids=["empty", "text", "huge header", "pickle"],
)
def test_a_file_that_is_not_safetensors_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "site-a.pt").write_bytes(content)

    with pytest.raises(CheckpointError, match=r"cannot read site-a\.pt .*convert_checkpoint"):
        Checkpoint(tmp_path / "site-a.pt")


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, {"t": torch.ones(1000)}, INFO)
    path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(CheckpointError, match=r"cannot read a\.safetensors"):
        Checkpoint(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot read none\.safetensors"):
        Checkpoint(tmp_path / "none.safetensors")


@pytest.mark.parametrize("damaged", ["{", json.dumps({"classes": 3}), json.dumps({"new": 1})])
def test_damaged_metadata_is_refused_when_it_is_asked_for(tmp_path: Path, damaged: str) -> None:
    save_file({"t": torch.ones(1)}, tmp_path / "a.safetensors", {"grasp": damaged})

    checkpoint = Checkpoint(tmp_path / "a.safetensors")

    assert checkpoint["t"].tolist() == [1.0]
    with pytest.raises(CheckpointError, match=r"metadata of a\.safetensors is damaged"):
        _ = checkpoint.info


def test_it_is_a_mapping(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a.safetensors", {"t": torch.ones(2, 3)}, INFO)

    checkpoint = Checkpoint(tmp_path / "a.safetensors")

    assert list(checkpoint) == ["t"]
    assert len(checkpoint) == 1
    assert checkpoint.found == {"t": Found((2, 3), "F32")}
    assert "u" not in checkpoint
    with pytest.raises(KeyError, match="u"):
        checkpoint["u"]


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large.safetensors"
    tensor = torch.ones(12 * MIB)  # 48 MiB: beyond what malloc keeps for later when it is freed
    write_checkpoint(path, {"t": tensor}, INFO)
    return path


def test_mapped_tensors_cost_no_private_memory_until_they_are_changed(large: Path) -> None:
    before = private_bytes()

    tensor = Checkpoint(large)["t"]

    assert tensor.sum() == 12 * MIB  # every page was read
    assert private_bytes() - before < 4 * MIB
    tensor.zero_()
    assert private_bytes() - before > 44 * MIB
    assert Checkpoint(large)["t"][0] == 1.0  # the file is as it was


def test_writing_a_mapped_file_again_costs_no_private_memory(large: Path) -> None:
    checkpoint = Checkpoint(large)
    before = private_bytes()

    with PeakMemory(torch.device("cpu")) as peak:
        write_checkpoint(large.with_name("again.safetensors"), checkpoint, INFO)

    assert peak.bytes - before < 8 * MIB
    assert Checkpoint(large.with_name("again.safetensors")).sha256 == checkpoint.sha256


def test_a_sealed_file_is_as_it_was_written_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "sealed.safetensors"
    tensors = {"a": torch.arange(8.0), "b": torch.tensor(3), "empty": torch.zeros(0, 2)}
    write_sealed(path, tensors, {"state": '{"epoch": 3}'})
    sealed = open_sealed(path)
    assert all(torch.equal(sealed[name], tensors[name]) for name in tensors)
    assert sealed.metadata["state"] == '{"epoch": 3}'

    for byte in range(path.stat().st_size):
        flip_a_bit(path, byte)
        with pytest.raises(CheckpointError):
            open_sealed(path)
        flip_a_bit(path, byte)
    open_sealed(path)


def test_an_unsealed_file_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "plain.safetensors", {"a": torch.zeros(2)}, INFO)
    with pytest.raises(CheckpointError, match="damaged"):
        open_sealed(tmp_path / "plain.safetensors")


def test_what_is_computed_when_asked_for_is_written_like_the_rest(tmp_path: Path) -> None:
    asked: list[str] = []

    class Lazy(Mapping[str, Tensor]):
        def __getitem__(self, name: str) -> Tensor:
            asked.append(name)
            return all_kinds()[name].clone()

        def __iter__(self) -> Iterator[str]:
            return iter(all_kinds())

        def __len__(self) -> int:
            return len(all_kinds())

    about = {"some": "metadata"}
    sha256 = write_streamed(tmp_path / "streamed", Lazy(), about)

    assert asked == list(all_kinds())
    assert write_safetensors(tmp_path / "whole", all_kinds(), about) == sha256
    assert (tmp_path / "streamed").read_bytes() == (tmp_path / "whole").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["streamed", "whole"]
