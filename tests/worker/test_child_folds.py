"""Real folds in children that load ahead, are killed, and run out of memory."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from grasp_core.report import Figures
from tests.worker import faults
from tests.worker.digits import Bench, Heard
from tests.worker.waiting import drained, last, result, until
from worker.child import Child, SparePool
from worker.messages import Failed


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def spares() -> Iterator[SparePool]:
    with SparePool(partial(Child, threads=1)) as spares:
        yield spares


def private_bytes(child: Child) -> int:
    words = Path(f"/proc/{child.pid}/statm").read_text().split()
    return (int(words[1]) - int(words[2])) * mmap.PAGESIZE


def test_a_spare_has_torch_loaded_before_it_is_taken(spares: SparePool) -> None:
    spare = spares._spare
    assert spare is not None

    until(lambda: spare.ready)

    maps = {Path(mapped.path).name for mapped in psutil.Process(spare.pid).memory_maps()}
    assert "libtorch_cpu.so" in maps


def untimed(figures: Figures) -> Figures:
    """Without what differs from run to run."""
    cost = {"seconds": None, "peak_bytes": None}
    candidates = tuple(each.model_copy(update=cost) for each in figures.candidates)
    return figures.model_copy(update={"candidates": candidates})


def test_a_killed_fold_is_gone_on_with_by_the_next_child(spares: SparePool, bench: Bench) -> None:
    """And ends in the same bytes as one that nobody disturbed, in a process without a limit."""
    began = bench.root / "began"
    with spares.take() as child:
        child.start(faults.PauseInEpoch(bench.fold("killed"), epoch=3, began=began), {})
        until(began.exists)
        child.kill()
        failed = drained(child)[-1]

    assert isinstance(failed, Failed)
    assert failed.code == "child_killed"
    assert not bench.fold("killed").output.exists()

    with spares.take() as child:
        until(lambda: child.ready)
        child.memory_limit = private_bytes(child) + 2**30
        folded = result(last(child, bench.fold("killed")))

    assert json.loads(folded.report)["resumed_from_epoch"] == 2
    undisturbed = bench.fold("undisturbed").run(Heard())
    assert folded.sha256 == undisturbed.sha256 is not None
    assert untimed(folded.metrics) == untimed(undisturbed.metrics)
    outputs = [
        bench.fold(name).output.joinpath("weights").read_bytes()
        for name in ("killed", "undisturbed")
    ]
    assert outputs[0] == outputs[1]


def test_a_fold_that_needs_more_than_its_limit_says_so(spares: SparePool, bench: Bench) -> None:
    with spares.take() as child:
        until(lambda: child.ready)
        child.memory_limit = private_bytes(child) + 20 * 2**20
        failed = last(child, bench.fold("starved"))

    assert isinstance(failed, Failed)
    assert (failed.code, failed.retryable) == ("out_of_memory", True)
    assert not bench.fold("starved").output.exists()
