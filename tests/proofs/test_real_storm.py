"""The storm with real folds: real images, a real architecture, the worker as it is installed.

What comes out is compared, byte for byte, with what `grasp_core` makes of the same files in this
process, one after the other, while nothing goes wrong.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from examples.digits import SPEC
from grasp_core import fold, open_task
from grasp_core.parameters import parse_config
from registry.jobs.states import TERMINAL
from registry.tables import Job
from tests.proofs.cluster import Cluster
from tests.proofs.conftest import MakeCluster
from tests.proofs.forms import choose_seed, short_and_long
from tests.proofs.storm import Offer, Sender, Storm, sending
from tests.servers import Postgres, Redis
from tests.trained import Digits
from tests.worker.waiting import until

pytestmark = pytest.mark.proof

REAL_WORKER = (sys.executable, "-m", "worker")
COMMON = {
    "alignment_batches": 4,
    "refine": {"epochs": 8, "lr": 1e-3},  # so long that a fault hits the fold it waited for
    "gate": {"max_drop": 1.0},  # every source counts: it is bytes that are compared
}
MERGES = {  # of one method alone, and of a race with a method that remembers
    "forwards": {**COMMON, "method": "grasp"},
    "backwards": {**COMMON, "candidates": ["keep", "ties"]},
}
FAULTS = {"child": 3, "worker": 2, "api": 1, "broker": 1, "postmaster": 1, "backend": 1, "flush": 2}
SET_UP = 3  # jobs before the first fold: a validation, two preparations
PAUSE_S = 0.7  # at most, from the moment at which a fold is under way
SEED = choose_seed("STORM_SEED")


class Made(NamedTuple):
    """The bytes of a version."""

    weights: bytes
    files: dict[str, bytes]  # what methods remember


class Files:
    """A target, and sources that were trained in other light, for two models."""

    def __init__(self, folder: Path, digits: Digits, count: int) -> None:
        torch.set_num_threads(1)  # as in the workers that must end in the same bytes
        self.folder = folder
        self.target = digits.target
        self.base = digits.sources[-1]
        sources = digits.sources[:count]
        self.sources = {"forwards": sources, "backwards": sources[::-1]}

    def offers(self) -> list[Offer]:
        """To one model and the other in turn."""
        turns = zip(*self.sources.values(), strict=True)
        return [
            Offer(model, path.stem, path.read_bytes())
            for turn in turns
            for model, path in zip(self.sources, turn, strict=True)
        ]

    def replay(self, model: str) -> list[Made]:
        """Every version of a model that folds its sources, in their order."""
        task = open_task(self.target, SPEC, cache_dir=self.folder / "cache")
        config = parse_config(MERGES[model] | {"device": "cpu"})
        merged: Path | None = None
        files: dict[str, Path] = {}
        versions = []
        for number, source in enumerate(self.sources[model], start=1):
            folder = self.folder / model / str(number)
            report = fold(
                SPEC,
                source,
                task,
                folder / "weights",
                merged=merged,
                files={"base": self.base} | files,
                files_output=folder,
                config=config,
                version=number,
            )
            merged = folder / "weights"
            files = {file.name: folder / file.name for file in report.files}
            read = {name: path.read_bytes() for name, path in files.items()}
            versions.append(Made(merged.read_bytes(), read))
        return versions


@pytest.mark.parametrize("count", short_and_long(2, 3))
def test_real_folds_end_in_the_same_bytes_whatever_is_killed(
    count: int,
    digits: Digits,
    tmp_path: Path,
    make_cluster: MakeCluster,
    bucket: dict[str, Any],
    postgres: Postgres,
    redis: Redis,
) -> None:
    files = Files(tmp_path, digits, count)
    print(f"STORM_SEED={SEED}")
    began = time.monotonic()
    options = {
        "worker": REAL_WORKER,
        "threads": 1,
        "max_attempts": 1000,
        "max_losses": 1000,
        **bucket,
    }
    with make_cluster(workers=2, **options) as cluster:
        make_models(cluster, files)
        offers = files.offers()
        jobs = SET_UP + len(offers)
        sender = Sender(cluster, offers, allowed=len(offers))
        storm = Storm(cluster, postgres, redis, SEED)
        faults = storm.faults(FAULTS)
        with sending(sender):
            for number, fault in enumerate(faults):
                cluster.wait_for_ended(SET_UP + len(offers) * number // len(faults))
                until(lambda: is_folding(cluster) or cluster.count_jobs(*TERMINAL) == jobs)
                time.sleep(storm.chance.uniform(0, PAUSE_S))
                fault()
            cluster.wait_for_apis()

        ended = [cluster.client.ended(job) for job in sender.accepted]
        assert [job["status"] for job in ended] == ["succeeded"] * len(offers)
        for model in files.sources:
            check(cluster, model, files.replay(model))
        reasons = cluster.failures()
    print(f"attempts lost: {dict(reasons)}; {time.monotonic() - began:.0f} s")
    assert reasons.keys() >= {"child_killed", "worker_lost"}


def make_models(cluster: Cluster, files: Files) -> None:
    http = cluster.https[0]
    with files.target.open("rb") as archive:
        http.post("/targets", data={"name": "digits"}, files={"file": archive}).raise_for_status()
    for model in files.sources:
        body = {
            "name": model,
            "architecture": SPEC.architecture,
            "target": "digits",
            "preprocessing": SPEC.preprocessing.model_dump(exclude_unset=True),
            "merge": MERGES[model],
        }
        with files.base.open("rb") as base:
            sent = http.post("/models", data={"model": json.dumps(body)}, files={"base": base})
            sent.raise_for_status()


def is_folding(cluster: Cluster) -> bool:
    """Whether a fold computes; False as long as the database is away."""
    begun = Job.stage.not_in(["start", "decode"])
    folding = select(Job.id).where(Job.kind == "fold", Job.status == "running", begun)
    try:
        with cluster.database.read() as session:
            return session.scalar(folding) is not None
    except OperationalError:
        return False


def check(cluster: Cluster, model: str, expected: Sequence[Made]) -> None:
    """Its versions have these bytes, and are an unbroken chain."""
    versions = cluster.client.versions(model)
    count = len(expected)
    assert [version["number"] for version in versions] == list(range(1, count + 1))
    assert [version["parent"] for version in versions] == [None, *range(1, count)]
    for version, made in zip(versions, expected, strict=True):
        place = f"/models/{model}/versions/{version['number']}"
        assert cluster.https[0].get(place).content == made.weights
        assert [file["name"] for file in version["files"]] == sorted(made.files)
        for name, content in made.files.items():
            assert cluster.https[0].get(f"{place}/files/{name}").content == content
    assert cluster.https[0].get(f"/models/{model}").content == expected[-1].weights
