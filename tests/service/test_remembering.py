"""A real method with a base and a state, in the whole service, killed in the midst of its folds."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

from grasp_core import METHODS, Checkpoint, parse_config
from tests.core.shadow import COUNT, SHADOW
from tests.service.place import Place, codes
from tests.service.remembering import KILLED, read_shadow_job
from tests.worker.digits import CLASSES, SPEC, write_target, write_weights
from worker.loop import Worker

MERGE = {
    "method": SHADOW.name,
    "refine": {"epochs": 3, "lr": 1e-3, "batch_size": 16},
    "gate": {"max_drop": 1.0},  # weights that were never trained: nothing to lose
}


@pytest.fixture(autouse=True)
def _shadow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, SHADOW.name, SHADOW)


@pytest.fixture
def place(home: Path) -> Iterator[Place]:
    place = Place(home, device="cpu", threads=1, warm_spare=True)
    yield place
    place.database.close()


def archive(folder: Path) -> bytes:
    content = io.BytesIO()
    with ZipFile(content, "w") as file:
        for path in sorted(write_target(folder).rglob("*.png")):
            file.write(path, path.relative_to(folder))
    return content.getvalue()


@pytest.mark.proof
def test_a_killed_fold_ends_in_the_same_weights_and_the_same_state(
    place: Place, tmp_path: Path
) -> None:
    target, _ = place.add_target(archive(tmp_path / "target"))
    files = [write_weights(tmp_path / f"{n}.safetensors", seed=n).read_bytes() for n in range(3)]
    base, *sources = files
    made = {
        "architecture": SPEC.architecture,
        "classes": CLASSES,
        "preprocessing": SPEC.preprocessing,
        "merge": parse_config(MERGE),
    }
    killed, other = (
        place.add_model(target, name, **made, files={"base": place.put(base)})[0]
        for name in (KILLED, "other")
    )
    jobs = [place.offer(killed, source) for source in sources]
    for source in sources:
        place.offer(other, source)

    worker = Worker(place.settings, read_job=read_shadow_job)
    worker.drain()
    worker.close()

    ended = [place.job(job) for job in jobs]
    assert [(job.status, codes(job)) for job in ended] == [("succeeded", ["child_killed"])] * 2
    assert all('"resumed_from_epoch": 1' in place.report(job) for job in jobs)
    assert place.hashes(killed) == place.hashes(other)
    states = place.states(killed, SHADOW.state_name)
    assert states == place.states(other, SHADOW.state_name)

    ancestor, *folded = (checkpoint(place, content, tmp_path) for content in files)
    for number, sha256 in enumerate(states, start=1):
        assert sha256 is not None
        state = Checkpoint(place.store.fetch(sha256))
        assert int(state[COUNT]) == number
        for name in state.keys() - {COUNT}:
            vectors = [
                source[name].double() - ancestor[name].double() for source in folded[:number]
            ]
            torch.testing.assert_close(state[name], sum(vectors))


def checkpoint(place: Place, content: bytes, folder: Path) -> Checkpoint:
    path = folder / place.put(content).sha256
    path.write_bytes(content)
    return Checkpoint(path)
