"""Which devices this machine has, without loading torch."""

import os
import shutil
import subprocess

from registry.process.settings import Settings
from registry.tables import DeviceClass

ASK = ("--query-gpu=uuid", "--format=csv,noheader")


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip() not in ("", "-1")]
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    asked = subprocess.run([program, *ASK], capture_output=True, text=True, check=False)  # noqa: S603
    return asked.stdout.split() if asked.returncode == 0 else []


def share_out(devices: str, concurrency: int, settings: Settings) -> list[dict[str, str]]:
    """The environments of one worker per device, and of `concurrency` on each.

    `devices` is auto, cpu, or a list of GPUs as CUDA_VISIBLE_DEVICES has it. Workers without a GPU
    share the processor's cores.
    """
    gpus = visible_gpus() if devices == "auto" else devices.split(",")
    if not gpus or gpus == ["cpu"]:
        threads = settings.threads or max(1, (os.cpu_count() or 1) // concurrency)
        alone = {"GRASP_DEVICE": "cpu", "GRASP_THREADS": str(threads)}
        return [alone] * concurrency
    return [{"CUDA_VISIBLE_DEVICES": gpu.strip()} for gpu in gpus] * concurrency


def device_class(settings: Settings) -> DeviceClass:
    """Whether jobs that want a GPU may come to a worker with these settings."""
    if settings.device == "auto":
        return "gpu" if visible_gpus() else "cpu"
    return "cpu" if settings.device == "cpu" else "gpu"
