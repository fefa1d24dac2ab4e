"""The measure itself: it must see what is allocated, and not what is mapped."""

from __future__ import annotations

import mmap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from grasp_core import memory
from grasp_core.memory import SAMPLE_S, PeakMemory, private_bytes

MB = 1_000_000


def test_a_peak_that_is_gone_again_was_seen() -> None:
    with PeakMemory(torch.device("cpu")) as before:
        pass

    with PeakMemory(torch.device("cpu")) as peak:
        # From the system itself: an allocator might reuse what was freed before.
        block = mmap.mmap(-1, 50 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for _ in range(50):
            block.write(b"x" * MB)
        deadline = time.monotonic() + 60  # for the sampler's turn on a busy machine
        while peak.bytes < before.bytes + 25 * MB and time.monotonic() < deadline:
            time.sleep(SAMPLE_S)
        block.close()

    assert peak.bytes - before.bytes == pytest.approx(50 * MB, rel=0.5)


def test_where_there_is_no_proc_the_system_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = private_bytes()
    monkeypatch.setattr(memory, "_STATM", Path("/nowhere"))

    assert private_bytes() > expected / 2  # it also counts libraries that nobody else has loaded


def test_on_cuda_it_is_torchs_own_record(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fake = SimpleNamespace(
        reset_peak_memory_stats=lambda device: calls.append("reset"),
        max_memory_allocated=lambda device: 123,
    )
    monkeypatch.setattr(torch, "cuda", fake)

    with PeakMemory(torch.device("cuda")) as peak:
        pass

    assert calls == ["reset"]
    assert peak.bytes == 123
