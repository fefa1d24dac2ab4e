"""Peak memory of a piece of work: private host memory, or the accelerator's own."""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path

import psutil
import torch

SAMPLE_S = 0.02  # shorter than a step; four times as often, waiting for the GIL costs a tenth

_STATM = Path("/proc/self/statm")


def private_bytes() -> int:
    """Anonymous memory of this process: what it must hold, without page cache that it maps."""
    if _STATM.exists():
        resident, shared = map(int, _STATM.read_bytes().split()[1:3])
        return (resident - shared) * mmap.PAGESIZE
    return int(psutil.Process(os.getpid()).memory_full_info().uss)


class PeakMemory:
    """`with PeakMemory(device) as peak: …`, then `peak.bytes`.

    On CUDA it is torch's own record; elsewhere a thread samples the private memory of the process.
    """

    def __init__(self, device: torch.device, every: float = SAMPLE_S) -> None:
        self.bytes = 0
        self._every = every
        self._device = device
        self._done = threading.Event()
        self._sampler: threading.Thread | None = None

    def __enter__(self) -> PeakMemory:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            self._sampler = threading.Thread(target=self._sample, daemon=True)
            self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._sampler is None:
            self.bytes = torch.cuda.max_memory_allocated(self._device)
            return
        self._done.set()
        self._sampler.join()
        self.bytes = max(self.bytes, private_bytes())

    def _sample(self) -> None:
        while True:
            self.bytes = max(self.bytes, private_bytes())
            if self._done.wait(self._every):
                return
