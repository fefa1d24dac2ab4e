"""Folds without torch: what a checkpoint says in its header is what its fold does.

Everything around them is real: the jobs, the files, the child process, the result types. What a
fold writes is a hash of what it was given, so a chain of versions tells in which order, and into
what, each source was folded.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from grasp_core.errors import CheckpointError, DeviceError, TargetError
from grasp_core.files import atomic_write
from grasp_core.kinds.image.config import Preprocessing
from grasp_core.manifest import Manifest, TensorSpec
from grasp_core.operations import (
    Folded,
    FoldSource,
    Operation,
    Prepared,
    PrepareModel,
    ReportProgress,
    TargetSummary,
    ValidateTarget,
)
from grasp_core.report import (
    Accuracies,
    Figures,
    FoldVerdict,
    NamedFile,
    Outcome,
    SplitAccuracies,
    StageRecord,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.orm import Session

    from registry.jobs.queue import Lease
    from registry.process.settings import Settings
    from worker.jobs import JobSpec

CLASSES = ("cat", "dog")
BAD_TARGET = b"no images in here"
BAD_ARCHITECTURE = "test_nfnet"  # one that there is
TICK_S = 0.02
METHOD, STATE = "fake", "state/fake"
MANIFEST = Manifest(
    architecture="test_resnet",
    classes=len(CLASSES),
    tensors={"digest": TensorSpec(shape=(32,), dtype="U8", kind="buffer")},
)


def checkpoint(
    label: str, *deeds: str, ticks: int = 3, remembered: bool = False, useless: bool = False
) -> bytes:
    """A source. Its fold's first attempt does the first of `deeds`, and so on; then all is well.

    What is `remembered` of it becomes part of the version's state. One that is `useless` leaves the
    weights as they were, where there are some.
    """
    metadata = {"deeds": ",".join(deeds), "ticks": str(ticks)}
    metadata |= {"remembered": "yes"} if remembered else {}
    metadata |= {"useless": "yes"} if useless else {}
    return safetensors(hashlib.sha256(label.encode()).digest(), metadata)


def safetensors(digest: bytes, metadata: dict[str, str] | None = None) -> bytes:
    header: dict[str, Any] = {"digest": {"dtype": "U8", "shape": [32], "data_offsets": [0, 32]}}
    if metadata:
        header["__metadata__"] = metadata
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + digest


def read_metadata(data: bytes) -> dict[str, str]:
    size = int.from_bytes(data[:8], "little")
    metadata: dict[str, str] = json.loads(data[8 : 8 + size]).get("__metadata__", {})
    return metadata


def leaves(merged: bytes | None, source: bytes) -> bool:
    """Whether the weights stay as they were."""
    return merged is not None and "useless" in read_metadata(source)


def merge(merged: bytes | None, source: bytes, version: int) -> bytes:
    """What folding `source` into `merged` must give."""
    if merged is not None and leaves(merged, source):
        return merged
    parts = (hashlib.sha256(part).digest() for part in (merged or b"", source))
    return safetensors(hashlib.sha256(b"".join(parts) + str(version).encode()).digest())


def remember(state: bytes | None, base: bytes | None, source: bytes) -> bytes:
    """The state after `source` was folded by a method that remembers it."""
    parts = (hashlib.sha256(part or b"").digest() for part in (state, base, source))
    return safetensors(hashlib.sha256(b"".join(parts)).digest(), {"what": "a state"})


def states(sources: Iterable[bytes], base: bytes | None = None) -> list[str]:
    """The sha256 of each version's state, likewise, if all of them are remembered."""
    state, hashes = None, []
    for source in sources:
        state = remember(state, base, source)
        hashes.append(hashlib.sha256(state).hexdigest())
    return hashes


def chain(sources: Iterable[bytes]) -> list[str]:
    """The sha256 of each version, if these sources are folded in this order, each once."""
    merged, hashes = None, []
    for version, source in enumerate(sources, start=1):
        merged = merge(merged, source, version)
        hashes.append(hashlib.sha256(merged).hexdigest())
    return hashes


def read_fake_job(session: Session, lease: Lease, settings: Settings) -> JobSpec:
    """The real job, with a fake operation in place of its own."""
    from worker.jobs import (  # children import this module too, and start quicker without
        JobSpec,
        read_job,
    )

    real = read_job(session, lease, settings)

    def fake(files: Mapping[str, Path], **others: Any) -> Operation:
        operation = real.operation(files=files, **others)
        given = {field.name: getattr(operation, field.name) for field in fields(operation)}  # type: ignore[arg-type]
        return FAKES[type(operation)](**given)

    return JobSpec(fake, real.inputs, real.local)


@dataclass(frozen=True)
class FakeValidation(ValidateTarget):
    def run(self, report: ReportProgress) -> TargetSummary:
        report("hash", 0.0, {})
        if self.files["target"].read_bytes() == BAD_TARGET:
            raise TargetError("the target has no images", hint="add some")
        counts = {split: dict.fromkeys(CLASSES, 5) for split in ("train", "val", "test")}
        return TargetSummary(CLASSES, "f" * 64, counts, (), 0, 30)


@dataclass(frozen=True)
class FakePreparation(PrepareModel):
    def run(self, report: ReportProgress) -> Prepared:
        report("build", 0.0, {})
        if self.architecture == BAD_ARCHITECTURE:
            raise CheckpointError("there is no such architecture", hint="choose another")
        size = Preprocessing(image_size=64, resize=64, interpolation="bilinear")
        return Prepared(self.classes or self.target_classes, MANIFEST, size)


@dataclass(frozen=True)
class FakeFold(FoldSource):
    def run(self, report: ReportProgress) -> Folded:
        source = self.files["source"].read_bytes()
        metadata = read_metadata(source)
        deeds = [deed for deed in metadata["deeds"].split(",") if deed]
        begun = self._begun()
        deed = deeds[begun] if begun < len(deeds) else None
        ticks = int(metadata["ticks"])
        for tick in range(ticks):
            stage, candidate = ("align", "keep") if tick < ticks / 2 else ("refine", "grasp")
            now: dict[str, float | str] = {"candidate": candidate, "step": tick, "steps": ticks}
            measured = {"pid": os.getpid(), "epoch": 1, "epochs": 2, "loss": 1 / (tick + 1)}
            report(stage, tick / ticks, now | measured)
            time.sleep(TICK_S)
            if tick == ticks // 2 and deed is not None:
                self._do(deed)
        merged = self._read("weights")
        made = {"weights": merge(merged, source, self.version)}
        if "remembered" in metadata:
            made[STATE] = remember(self._read(STATE), self._read("base"), source)
        return self._write(made, begun, "kept" if leaves(merged, source) else "accepted")

    def _begun(self) -> int:
        """How many attempts were begun before: the work folder goes from one to the next."""
        self.work_dir.mkdir(parents=True, exist_ok=True)
        note = self.work_dir / "begun"
        begun = int(note.read_text()) if note.exists() else 0
        with atomic_write(note) as file:
            file.write(str(begun + 1).encode())
        return begun

    def _do(self, deed: str) -> None:
        match deed:
            case "raise":
                raise ValueError("something unforeseen")
            case "refuse":
                raise CheckpointError("this checkpoint is no good", hint="train it again")
            case "unplug":
                raise DeviceError("device 'cuda' cannot be used")
            case "exit":
                os._exit(7)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "slay":
                os.kill(os.getppid(), signal.SIGKILL)
            case "eat":
                hoard = [bytearray(2**24) for _ in range(2**10)]
                raise AssertionError(f"{len(hoard)} blocks of memory, and no end")

    def _read(self, name: str) -> bytes | None:
        return self.files[name].read_bytes() if name in self.files else None

    def _write(self, made: Mapping[str, bytes], begun: int, outcome: Outcome) -> Folded:
        for name, content in made.items():
            with atomic_write(self.output / name) as file:
                file.write(content)
        each = Accuracies(accuracy=0.5, per_class=dict.fromkeys(CLASSES, 0.5))
        accuracies = SplitAccuracies(val=each, test=each)
        return Folded(
            report=json.dumps(
                {
                    "schema": 2,
                    "outcome": outcome,
                    "begun_before": begun,
                    "stages": [{"name": "refine", "seconds": TICK_S, "peak_bytes": 1}],
                }
            ),
            verdict=FoldVerdict(outcome=outcome),
            method=None if outcome == "kept" else METHOD,
            stages=(StageRecord(name="refine", seconds=TICK_S, peak_bytes=1),),
            files=tuple(
                NamedFile(name=n, sha256=hashlib.sha256(made[n]).hexdigest(), size=len(made[n]))
                for n in made
            ),
            metrics=Figures(
                before=accuracies if "weights" in self.files else None,
                after=accuracies,
                transferred_share=0.5,
            ),
        )


FAKES: dict[type, type[FakeValidation | FakePreparation | FakeFold]] = {
    ValidateTarget: FakeValidation,
    PrepareModel: FakePreparation,
    FoldSource: FakeFold,
}
