"""Gradients of the task's loss, parameter by parameter, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import torch
from torch import Tensor

from grasp_core.seeds import derive_seed
from grasp_core.tasks import Batch
from grasp_core.workbench import Workbench

Consumer = Callable[[str, Tensor], None]


def micro_batches(batch: Batch, size: int | None) -> Iterator[tuple[Batch, float]]:
    """Parts of at most `size` examples, each with its share of the batch."""
    step = size or len(batch)
    for start in range(0, len(batch), step):
        part = batch[slice(start, start + step)]
        yield part, len(part) / len(batch)


def stream_gradients(bench: Workbench, consume: Consumer, known: Tensor | None = None) -> None:
    """Hand every parameter's gradient, summed over the alignment batches, to `consume`.

    Each is handed over in the last backward pass as soon as it is complete, and freed at once:
    with one batch there are never two of them in memory.
    """
    named = {parameter: name for name, parameter in bench.model.named_parameters()}

    def hand_over(parameter: Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is not None:
            consume(named[parameter], gradient)  # type: ignore[index]

    torch.manual_seed(derive_seed(bench.seed, "align"))  # dropout, in train mode
    handles = []
    for number, (part, weight, last) in enumerate(_marked(alignment_parts(bench, known))):
        if last:
            handles = [p.register_post_accumulate_grad_hook(hand_over) for p in named]
        (bench.task.loss(bench.model, part, known) * weight).backward()
        bench.recorder.tick((number + 1) / _expected_parts(bench))
    for handle in handles:
        handle.remove()
    for parameter in named:  # what only an earlier batch reached
        hand_over(parameter)


def alignment_parts(bench: Workbench, known: Tensor | None = None) -> Iterator[tuple[Batch, float]]:
    """The alignment batches in parts, without the examples of classes that are not `known`."""
    config = bench.config
    batches = bench.task.alignment_batches(
        config.alignment_batch_size, config.alignment_batches, derive_seed(bench.seed, "batches")
    )
    placed = (bench.runtime.place(batch) for batch in batches)
    usable = (batch if known is None else batch[known[batch.labels]] for batch in placed)
    return chain.from_iterable(micro_batches(b, config.micro_batch) for b in usable if len(b))


def _expected_parts(bench: Workbench) -> int:
    config = bench.config
    per_batch = -(
        -config.alignment_batch_size // (config.micro_batch or config.alignment_batch_size)
    )
    return config.alignment_batches * per_batch


def _marked(parts: Iterator[tuple[Batch, float]]) -> Iterator[tuple[Batch, float, bool]]:
    """Each part together with whether it is the last."""
    waiting = next(parts, None)
    while waiting is not None:
        following = next(parts, None)
        yield *waiting, following is None
        waiting = following
