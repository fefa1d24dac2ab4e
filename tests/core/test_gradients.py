"""Streamed gradients against those that a plain loop leaves in `.grad`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from grasp_core.architectures import load_weights
from grasp_core.gradients import micro_batches, stream_gradients
from grasp_core.seeds import derive_seed
from grasp_core.workbench import Workbench
from tests.core.test_refinement import make_bench
from tests.core.toy import quick

CPU = torch.device("cpu")


def naive_gradients(bench: Workbench, keep: list[int] | None = None) -> dict[str, Tensor]:
    """The sum over the alignment batches; only examples of the classes in `keep`, if given."""
    bench.model.zero_grad()
    config = bench.config
    for batch in bench.task.alignment_batches(
        config.alignment_batch_size, config.alignment_batches, derive_seed(bench.seed, "batches")
    ):
        known = None
        if keep is not None:
            known = torch.zeros(3, dtype=torch.bool)
            known[keep] = True
            batch = batch[torch.isin(batch.labels, torch.tensor(keep))]
        bench.task.loss(bench.model, batch, known).backward()
    result = {n: p.grad.clone() for n, p in bench.model.named_parameters() if p.grad is not None}
    bench.model.zero_grad()
    return result


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("micro_batch", [None, 5])
@pytest.mark.parametrize("keep", [None, [0, 2]])
def test_streamed_gradients_are_the_summed_ones(
    merged_weights: dict[str, Tensor],
    tmp_path: Path,
    batches: int,
    micro_batch: int | None,
    keep: list[int] | None,
) -> None:
    config = quick(alignment_batches=batches, micro_batch=micro_batch)
    bench = make_bench(merged_weights, tmp_path, config)
    bench.model.eval()
    known = None if keep is None else torch.tensor([i in keep for i in range(3)])
    streamed: dict[str, Tensor] = {}

    stream_gradients(bench, streamed.__setitem__, known)

    expected = naive_gradients(bench, keep)
    assert streamed.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.allclose(streamed[name], gradient, atol=1e-5), name


def test_a_gradient_is_freed_as_soon_as_it_is_handed_over(
    merged_weights: dict[str, Tensor], tmp_path: Path
) -> None:
    bench = make_bench(merged_weights, tmp_path, quick(alignment_batches=1))
    bench.model.eval()
    alive: list[int] = []

    def count(name: str, gradient: Tensor) -> None:
        alive.append(sum(p.grad is not None for p in bench.model.parameters()))

    stream_gradients(bench, count)

    assert len(alive) == len(list(bench.model.parameters()))
    assert max(alive) == 0  # the one handed over is out of the module already


def test_a_parameter_that_only_an_earlier_batch_reached_is_handed_over_too(
    merged_weights: dict[str, Tensor], tmp_path: Path
) -> None:
    bench = make_bench(merged_weights, tmp_path, quick(alignment_batches=2))
    bench.model.eval()
    parts = 0

    def loss(model: torch.nn.Module, batch: object, known: object = None) -> Tensor:
        nonlocal parts
        parts += 1
        first, second = list(model.parameters())[:2]
        return first.sum() if parts == 1 else second.sum()

    bench.task.loss = loss  # type: ignore[method-assign]
    seen: dict[str, Tensor] = {}

    stream_gradients(bench, seen.__setitem__)

    assert list(seen) == ["bn1.weight", "conv_stem.weight"]


def test_batches_without_a_known_class_are_left_out(
    merged_weights: dict[str, Tensor], tmp_path: Path
) -> None:
    bench = make_bench(merged_weights, tmp_path, quick())
    load_weights(bench.model, merged_weights, CPU)
    seen: dict[str, Tensor] = {}

    stream_gradients(bench, seen.__setitem__, torch.zeros(3, dtype=torch.bool))

    assert seen == {}


def test_micro_batches_part_a_batch_by_share(
    merged_weights: dict[str, Tensor], tmp_path: Path
) -> None:
    bench = make_bench(merged_weights, tmp_path, quick())
    batch = next(bench.task.alignment_batches(10, 1, 0))

    parts = list(micro_batches(batch, 4))

    assert [len(part) for part, _ in parts] == [4, 4, 2]
    assert [share for _, share in parts] == pytest.approx([0.4, 0.4, 0.2])
    assert torch.equal(torch.cat([part.labels for part, _ in parts]), batch.labels)
