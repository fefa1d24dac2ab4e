"""What the benchmarks share: cases, images, checkpoints, the naive fold, tables and promises.

Set before torch is loaded: one thread, so that a second busy process disturbs the figures less.
"""

from __future__ import annotations

import ctypes
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grasp_core.checkpoints import Checkpoint, CheckpointInfo, write_checkpoint, write_safetensors
from grasp_core.config import FoldConfig
from grasp_core.data import SplitName
from grasp_core.folding import fold
from grasp_core.kinds.image.architectures import model_arguments, resolve_preprocessing
from grasp_core.kinds.image.formats import open_images
from grasp_core.progress import ProgressCallback
from grasp_core.report import FoldReport
from grasp_core.spec import ModelSpec
from grasp_core.tasks import Augmentation, Batch, open_task

torch.set_num_threads(1)

MB = 1e6
M_MMAP_THRESHOLD, MAPPED_BYTES = -3, 2**14  # malloc.h: blocks this large get a mapping of their own
P = ParamSpec("P")
T = TypeVar("T")
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """One architecture at one size."""

    architecture: str
    image_size: int
    batch_size: int

    def __str__(self) -> str:
        return f"{self.architecture} {self.image_size}px batch {self.batch_size}"


# Weights are next to nothing in the first, and dominate in the last.
CASES = (
    Case("mobilevit_xs", 64, 32),
    Case("resnet50", 64, 32),
    Case("vit_base_patch16_224", 224, 2),
)


@dataclass(frozen=True)
class Setting:
    """A case with its files: two checkpoints, of a merged model and a source, and the images."""

    case: Case
    spec: ModelSpec
    folder: Path

    @property
    def merged(self) -> Path:
        return self.folder / "merged.safetensors"

    @property
    def source(self) -> Path:
        return self.folder / "source.safetensors"

    @property
    def images(self) -> Path:
        return self.folder / "images.safetensors"

    def model(self, weights: Path) -> nn.Module:
        """A timm model as anyone would load it."""
        model: nn.Module = timm.create_model(
            self.spec.architecture, num_classes=len(self.spec.classes), **model_arguments(self.spec)
        )
        model.load_state_dict(dict(Checkpoint(weights)))
        return model

    def fold(
        self,
        config: FoldConfig,
        progress: ProgressCallback | None = None,
        files_output: Path | None = None,
    ) -> FoldReport:
        """This fold. Forced, since these models have learnt nothing that a gate could judge."""
        return fold(
            self.spec,
            self.source,
            InMemory.load(self.images, self.spec.classes),
            self.folder / "output.safetensors",
            merged=self.merged,
            files_output=files_output,
            config=config,
            work_dir=self.folder / "work",
            progress=progress,
            force=True,
        )


def prepare(case: Case, folder: Path, data: Path | None, steps: int) -> Setting:
    """Write what `case` needs: checkpoints, and images for `steps` batches of training."""
    say(f"preparing {case}")
    folder.mkdir()
    overrides = {"image_size": case.image_size}
    spec = ModelSpec(
        architecture=case.architecture, classes=("a", "b", "c"), preprocessing=overrides
    )
    if data is not None:
        classes = open_images(data, resolve_preprocessing(spec)).classes
        spec = spec.model_copy(update={"classes": classes})
    setting = Setting(case, spec, folder)
    write_images(setting, data, steps)
    weights = initial_weights(setting.spec)
    write_checkpoint(setting.merged, weights, CheckpointInfo(classes=spec.classes))
    write_source(setting.source, weights, spec, seed=1)
    return setting


def initial_weights(spec: ModelSpec) -> Tensors:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(
        spec.architecture, num_classes=len(spec.classes), **model_arguments(spec)
    )
    return model.state_dict()


def write_source(path: Path, weights: Tensors, spec: ModelSpec, seed: int) -> None:
    """A relative of `weights`: near enough that some of its gradients agree."""
    generator = torch.Generator().manual_seed(seed)
    source = {
        name: w + 0.05 * w.std() * torch.randn(w.shape, generator=generator) if w.ndim > 1 else w
        for name, w in weights.items()
    }
    write_checkpoint(path, source, CheckpointInfo(classes=spec.classes))


def write_images(setting: Setting, data: Path | None, steps: int) -> None:
    """The first images of `data`, or seeded noise; one batch of validation and one of test."""
    size = setting.case.batch_size
    if data is None:
        side, generator = setting.case.image_size, torch.Generator().manual_seed(0)
        batches = {
            split: Batch(
                {"x": torch.randn(count, 3, side, side, generator=generator)},
                torch.arange(count) % len(setting.spec.classes),
            )
            for split, count in (("train", steps * size), ("val", size), ("test", size))
        }
    else:
        real = open_task(data, setting.spec)
        batches = {
            "train": next(real.alignment_batches(steps * size, 1, seed=0)),
            "val": next(real.evaluation_batches("val", size)),
            "test": next(real.evaluation_batches("test", size)),
        }
    tensors = {f"{split}/inputs": batch.inputs["x"] for split, batch in batches.items()}
    tensors |= {f"{split}/labels": batch.labels for split, batch in batches.items()}
    write_safetensors(setting.images, tensors, {})


class InMemory:
    """A grasp_core Task whose images are tensors in memory."""

    fingerprint = "in memory"

    def __init__(self, splits: dict[SplitName, Batch], classes: tuple[str, ...]) -> None:
        self.classes = classes
        self._splits = splits

    @classmethod
    def load(cls, path: Path, classes: tuple[str, ...]) -> InMemory:
        stored = Checkpoint(path)
        names: tuple[SplitName, ...] = ("train", "val", "test")
        splits = {
            name: Batch({"x": stored[f"{name}/inputs"].clone()}, stored[f"{name}/labels"].clone())
            for name in names
        }
        return cls(splits, classes)

    def alignment_batches(self, size: int, count: int, seed: int) -> Iterator[Batch]:
        train = self._splits["train"]
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
        return (train[rows] for rows in order[: size * count].split(size))

    def training_batches(
        self, size: int, seed: int, augmentation: Augmentation | None = None
    ) -> Iterator[Batch]:
        del augmentation  # it costs neither memory nor, next to the model, time
        return self.alignment_batches(size, self.training_steps(size), seed)

    def training_steps(self, size: int) -> int:
        return len(self._splits["train"]) // size

    def evaluation_batches(self, split: SplitName, size: int) -> Iterator[Batch]:
        whole = self._splits[split]
        return (whole[slice(start, start + size)] for start in range(0, len(whole), size))

    def loss(self, model: nn.Module, batch: Batch, known: Tensor | None = None) -> Tensor:
        logits = model(**batch.inputs)
        if known is not None:
            logits = logits.masked_fill(~known, -torch.inf)
        return F.cross_entropy(logits, batch.labels)

    def log_probabilities(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.log_softmax(model(**batch.inputs), dim=-1)

    def accuracy(self, model: nn.Module, size: int) -> float:
        """On the validation split, as an ordinary training loop measures it."""
        model.eval()
        with torch.inference_mode():
            hits = sum(
                int((model(**batch.inputs).argmax(-1) == batch.labels).sum())
                for batch in self.evaluation_batches("val", size)
            )
        return hits / len(self._splits["val"])


@dataclass(frozen=True)
class Ordinary:
    """Fine-tuning and folding as one would write them without a thought for memory.

    AdamW is fused, as in this fold, so that the optimizer makes no difference.
    """

    setting: Setting
    epochs: int
    alignment_batches: int = 1

    @cached_property
    def task(self) -> InMemory:
        return InMemory.load(self.setting.images, self.setting.spec.classes)

    def fine_tune(self) -> None:
        """Plain fine-tuning of one model; the last epoch is saved."""
        model = self.setting.model(self.setting.merged)
        for _ in self._epochs(model):
            pass
        self._save(model.state_dict())

    def fold(self) -> None:
        """The paper's algorithm with two whole models and two sets of gradients."""
        model = self.merge()
        best, best_accuracy = model.state_dict(), -1.0
        for accuracy in self._epochs(model):
            if accuracy > best_accuracy:
                best, best_accuracy = deepcopy(model.state_dict()), accuracy
        self._save(best)

    def merge(self) -> nn.Module:
        """Stages 1 to 4. The source and both sets of gradients are let go at the end."""
        merged = self.setting.model(self.setting.merged)
        source = self.setting.model(self.setting.source)
        self.gradients(merged)
        self.gradients(source)
        with torch.no_grad():
            for p, pk in zip(merged.parameters(), source.parameters(), strict=True):
                if F.cosine_similarity(_flat(pk.grad), _flat(p.grad), dim=0) > 0.3:
                    p.copy_(pk)
        merged.zero_grad()
        return merged

    def gradients(self, model: nn.Module) -> None:
        model.eval()
        size = self.setting.case.batch_size
        for batch in self.task.alignment_batches(size, self.alignment_batches, seed=0):
            self.task.loss(model, batch).backward()

    def train(self) -> None:
        """The same without a single look at validation."""
        model = self.setting.model(self.setting.merged)
        for _ in self._training(model):
            pass
        self._save(model.state_dict())

    def _epochs(self, model: nn.Module) -> Iterator[float]:
        """Train; after each epoch, the accuracy on the validation split."""
        for _ in self._training(model):
            yield self.task.accuracy(model, self.setting.case.batch_size)

    def _training(self, model: nn.Module) -> Iterator[None]:
        """Stops after each epoch."""
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01, fused=True)
        for epoch in range(self.epochs):
            model.train()
            for batch in self.task.training_batches(self.setting.case.batch_size, epoch):
                optimizer.zero_grad()
                self.task.loss(model, batch).backward()
                optimizer.step()
            yield

    def _save(self, state: Tensors) -> None:
        write_safetensors(self.setting.folder / "ordinary.safetensors", state, {})


def _flat(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return gradient.reshape(-1)


def in_fresh_process(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `function` returns in a process that has imported this module and done nothing else.

    It is forked from a server that has done the imports, which take longer than most functions.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["bench.common"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *args, **kwargs).result()


def return_freed_memory() -> None:
    """What was freed goes back to the system; from now on in this process, large blocks do so at
    once (glibc only)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        libc.malloc_trim(0)


def say(what: str) -> None:
    """Print to stderr what is being done."""
    print(f"… {what}", file=sys.stderr, flush=True)


def print_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Left the names, right the numbers."""
    cells = [list(heads), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n{title}")
    for number, row in enumerate(cells):
        padded = [row[0].ljust(widths[0])]
        padded += [c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(padded).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


@dataclass(frozen=True)
class Promise:
    """A figure that must not be above its limit."""

    text: str
    limit: float
    measured: float

    @property
    def holds(self) -> bool:
        return self.measured <= self.limit

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "DOES NOT HOLD"
        return f"promise: {self.text} ≤ {self.limit:g} · measured {self.measured:.3f} · {verdict}"


def settle(promises: Sequence[Promise]) -> int:
    """Print every promise with its verdict; the exit code is 0 if all of them hold."""
    print()
    for promise in promises:
        print(promise)
    return 0 if all(promise.holds for promise in promises) else 1
