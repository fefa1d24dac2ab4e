"""Which workers a machine gets, and which jobs they may take."""

from pathlib import Path

import pytest

from registry.process.settings import Settings
from worker.devices import device_class, share_out, visible_gpus

NVIDIA_SMI = """#!/bin/sh
echo GPU-aaaa
echo GPU-bbbb
"""


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("two_gpus")
def test_the_driver_is_asked_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert visible_gpus() == ["GPU-aaaa", "GPU-bbbb"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1, 3")
    assert visible_gpus() == ["1", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []


@pytest.mark.usefixtures("two_gpus")
def test_auto_is_a_worker_per_gpu_that_sees_no_other() -> None:
    assert share_out("auto", 1, Settings()) == [
        {"CUDA_VISIBLE_DEVICES": "GPU-aaaa"},
        {"CUDA_VISIBLE_DEVICES": "GPU-bbbb"},
    ]
    assert len(share_out("auto", 3, Settings())) == 6


def test_gpus_can_be_named() -> None:
    assert share_out("2,5", 1, Settings()) == [
        {"CUDA_VISIBLE_DEVICES": "2"},
        {"CUDA_VISIBLE_DEVICES": "5"},
    ]


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("devices", ["auto", "cpu"])
def test_without_gpus_workers_share_the_cores(
    devices: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)

    assert share_out(devices, 4, Settings()) == [{"GRASP_DEVICE": "cpu", "GRASP_THREADS": "2"}] * 4
    assert share_out(devices, 99, Settings())[0]["GRASP_THREADS"] == "1"
    assert share_out(devices, 4, Settings(threads=3))[0]["GRASP_THREADS"] == "3"


@pytest.mark.usefixtures("no_gpu")
def test_a_machine_without_gpus_takes_no_jobs_that_want_one() -> None:
    assert device_class(Settings()) == "cpu"
    assert device_class(Settings(device="cuda:1")) == "gpu"


@pytest.mark.usefixtures("two_gpus")
def test_a_machine_with_gpus_takes_them() -> None:
    assert device_class(Settings()) == "gpu"
    assert device_class(Settings(device="cpu")) == "cpu"
