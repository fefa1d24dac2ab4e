"""Devices, number formats and determinism, on a machine that may have no accelerator."""

from __future__ import annotations

import pytest
import torch

from grasp_core import DeviceError, Runtime
from grasp_core.runtime import choose_device, choose_format, deterministic, uninitialized
from grasp_core.seeds import derive_seed
from grasp_core.tasks import Batch
from tests.configs import grasp_alone


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_takes_the_best_device(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    assert choose_device("auto").type == expected


@pytest.mark.parametrize("name", ["no such device", "xpu"])
def test_a_device_that_is_not_there_is_a_clear_error(name: str) -> None:
    with pytest.raises(DeviceError, match=f"device '{name}' cannot be used") as caught:
        choose_device(name)

    assert caught.value.hint == "auto takes the best there is"


@pytest.mark.parametrize(
    ("precision", "device", "bf16", "expected"),
    [
        ("auto", "cpu", True, None),
        ("auto", "cuda", True, torch.bfloat16),
        ("auto", "cuda", False, torch.float16),
        ("float32", "cuda", True, None),
        ("bfloat16", "cpu", True, torch.bfloat16),
        ("float16", "cuda", True, torch.float16),
    ],
)
def test_half_precision_is_automatic_on_cuda_only(
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    device: str,
    bf16: bool,
    expected: torch.dtype | None,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: bf16)

    assert choose_format(precision, torch.device(device)) == expected  # type: ignore[arg-type]


def test_batches_are_laid_out_as_asked() -> None:
    runtime = Runtime.choose(grasp_alone(device="cpu", channels_last=True))
    images = Batch({"x": torch.zeros(2, 3, 4, 4)}, torch.zeros(2, dtype=torch.int64))
    rows = Batch({"x": torch.zeros(2, 5)}, torch.zeros(2, dtype=torch.int64))

    assert runtime.place(images).inputs["x"].is_contiguous(memory_format=torch.channels_last)
    assert runtime.place(rows).inputs["x"].is_contiguous()


def test_torch_gets_its_settings_back() -> None:
    torch.backends.cudnn.benchmark = True

    with deterministic():
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
        assert not uninitialized.fill_uninitialized_memory

    assert not torch.are_deterministic_algorithms_enabled()
    assert uninitialized.fill_uninitialized_memory
    assert torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False


def test_seeds_depend_on_every_part_and_fit_torch_and_numpy() -> None:
    seeds = {derive_seed(*parts) for parts in [(0, 1), (0, 2), (1, 1), (0, 1, "a"), ("0/1/", "a")]}

    assert len(seeds) == 5
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed("model", 3, "sha") == derive_seed("model", 3, "sha")
