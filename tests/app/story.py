"""A service with much to show: figures recorded from a real fold of handwritten digits."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grasp_core.report import FoldReport
from registry.jobs.queue import Lease
from registry.models import record_preparation
from registry.tables import Model, utc_now
from registry.targets import record_validation
from registry.versions import FoldResult, publish, record_trial, reject
from tests.app.world import MANIFEST, World, checkpoint, sha256

RECORDED = (Path(__file__).parent / "recorded_report.json").read_text()
CLASSES = tuple("0123456789")
HOSTILE = "<script>alert('site-c')</script>"
SOURCES = ("site-a", "site-b", HOSTILE, "site-d")
# The smallest PNG there is: one pixel.
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9"
    "awAAAABJRU5ErkJggg=="
)
SUMMARY = {
    "classes": list(CLASSES),
    "counts": {"train": dict.fromkeys(CLASSES, 70), "val": dict.fromkeys(CLASSES, 18), "test": {}},
    "images": 880,
    "broken": [{"name": "7/x.png", "reason": "cut off"}],
    "broken_count": 1,
    "fingerprint": "0" * 64,
}
SAMPLES = [{"class": name, "split": "train", "png": PIXEL} for name in CLASSES for _ in range(4)]


@dataclass(frozen=True)
class Story:
    """The ids of what there is."""

    target: str
    model: str
    folded: str  # jobs, by what became of them
    rejected: str
    failed: str
    tried: str
    running: str
    queued: str


def populate(world: World) -> Story:
    """Four versions, the last a way back; a job in every state; all of the owner who asks."""
    target = world.post_target("digits").json()["target"]["id"]
    lease = world.claim()
    with world.database.write() as session:
        record_validation(session, lease, SUMMARY, utc_now(), samples=SAMPLES)
    model = world.post_model("merged", "digits").json()["model"]["id"]
    lease = world.claim()
    with world.database.write() as session:
        manifest = MANIFEST.model_dump(mode="json")
        record_preparation(session, lease, CLASSES, manifest, utc_now())
    folded = [_fold(world, number, name) for number, name in enumerate(SOURCES[:3])]
    world.client.post("/models/merged/rollback", json={"version": 2})
    rejected = _offer(world, 3, SOURCES[3])
    _reject(world, world.claim())
    failed = _offer(world, 4, "site-e")
    world.fail(attempts=2)
    world.fail(attempts=2)
    tried = world.post_raw(checkpoint(5), params={"dry_run": "true", "name": "site-f"}).json()
    _try_out(world, world.claim())
    running, queued = _offer(world, 6, "site-g"), _offer(world, 7, "site-h")
    lease = world.claim()
    for candidate, losses in (("keep", (0.9, 0.6, 0.4)), ("source", (1.2, 0.5))):
        for step, loss in enumerate(losses):
            now: dict[str, float | str] = {"candidate": candidate, "loss": loss, "epoch": 1.0}
            world.progress(lease, "refine", 0.4, step=30 * step, steps=100, **now)
    world.add_worker(running, id="wrk_busy")
    return Story(target, model, folded[-1], rejected, failed, tried["job"]["id"], running, queued)


def report() -> dict[str, Any]:
    """The recorded one, of the sources that are offered here."""
    text = RECORDED
    for number in range(len(SOURCES)):
        text = text.replace(f'"source-{number}"', f'"{sha256(checkpoint(number))}"')
    found: dict[str, Any] = json.loads(text)
    return found


def race() -> dict[str, Any]:
    """The same, where GRASP has won over others."""
    recorded = report()
    accuracies = recorded["metrics"]["after"]["val"]
    history = [
        {"step": step, "epoch": step / 22, "lr": 1e-3, "train_loss": None, "val_accuracy": 0.9}
        | {"val_log_likelihood": -1 / (1 + step)}
        for step in range(0, 101, 10)
    ]
    val = {"accuracy": accuracies["accuracy"], "log_likelihood": -0.2}

    def gains(accuracy: float, log_likelihood: float) -> dict[str, Any]:
        return {
            "accuracy": {"mean": accuracy, "error": 0.01},
            "log_likelihood": {"mean": log_likelihood, "error": 0.02},
        }

    def candidate(name: str, outcome: str, **others: Any) -> dict[str, Any]:
        own = {"name": name, "method": name, "config": {"method": name}, "outcome": outcome}
        measured = {} if "reason" in others else {"val": val, "history": history, "seconds": 2.0}
        return {**own, **measured, **others}

    stages = [{**stage, "candidate": "grasp"} for stage in recorded["stages"]]
    return recorded | {
        "candidates": [
            candidate("keep", "lost"),
            candidate("source", "lost", gain=gains(-0.02, -0.05), share=1.0, went_on=False),
            candidate("mean", "out", reason="its outputs are not finite"),
            candidate("grasp", "won", gain=gains(0.018, 0.1), share=0.3),
            candidate("grasp-2", "lost", same_as="grasp", method="grasp"),
        ],
        "worth": {
            "effectiveness": 0.1,
            "informativeness": 1.105,
            "val": gains(0.018, 0.1),
            "test": gains(0.011, 0.08),
        },
        "stages": stages,
    }


def metrics(report: dict[str, Any]) -> dict[str, Any]:
    """As a worker keeps them with the version."""
    measured = {
        moment: {
            split: {"accuracy": found["accuracy"], "per_class": found["per_class_accuracy"]}
            for split, found in splits.items()
        }
        for moment, splits in report["metrics"].items()
    }
    figures = FoldReport.model_validate(report).figures.model_dump(mode="json")
    own = ("transferred_share", "candidates", "worth")
    return measured | {name: figures[name] for name in own}


def _result(
    world: World, lease: Lease, reason: str | None = None, *, raced: bool = False
) -> FoldResult:
    with world.database.read() as session:
        base = session.get_one(Model, lease.queue_id).version
    reported = (race() if raced else report()) | {"reason": reason}
    files = {}
    if reason is None:
        with world.store.create() as writer:
            writer.write(checkpoint(1000 + (base or 0)))
            files["weights"] = writer.commit()
    change = (
        {"count": 20, "lost": 7, "gained": 1} if reason else {"count": 20, "lost": 0, "gained": 2}
    )
    verdict = {"outcome": "rejected" if reason else "accepted", "reason": reason, "change": change}
    return FoldResult(base, json.dumps(reported), metrics(reported), files, "grasp", verdict)


def _offer(world: World, number: int, name: str) -> str:
    answer = world.post_source(checkpoint(number), fields={"name": name})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["job"]["id"])


def _fold(world: World, number: int, name: str) -> str:
    """The second one ran several candidates."""
    job = _offer(world, number, name)
    lease = world.claim()
    result = _result(world, lease, raced=number == 1)
    with world.database.write() as session:
        publish(session, lease, result, utc_now())
    return job


def _reject(world: World, lease: Lease) -> None:
    result = _result(world, lease, "validation accuracy fell by 0.1")
    with world.database.write() as session:
        reject(session, lease, result, utc_now())


def _try_out(world: World, lease: Lease) -> None:
    result = _result(world, lease)
    with world.database.write() as session:
        record_trial(session, lease, result, utc_now())
