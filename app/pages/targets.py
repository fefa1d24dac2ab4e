"""The targets, and one of them with some examples of its classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from app.charts import bar
from app.fields import Cursor, Reference
from app.pages.rendering import PageDep
from app.serializers import serialize_model, serialize_target
from app.service import ServiceDep
from grasp_core.kinds import KINDS
from registry.lookup import MAX_PAGE, find_named, list_page
from registry.tables import Model, Target

TARGETS_PER_PAGE = 30
SPLITS = {"train": "Training", "val": "Validation", "test": "Test"}
MOST_CLASSES = 100
MOST_SAMPLES = 6  # of a class
SAMPLE_ROOM = 150_000  # characters, of a page that has at most twice as many

router = APIRouter()


@dataclass(frozen=True)
class Sample:
    """An example to look at, or to read."""

    uri: str | None = None  # data: URI of what can be seen
    text: str | None = None

    def __len__(self) -> int:
        return len(self.uri or "") + len(self.text or "")


@dataclass(frozen=True)
class ClassRow:
    """A class: how many examples it has in each split, and a few of them."""

    name: str
    counts: Sequence[int]
    total: int
    bar: Markup
    samples: Sequence[Sample]


@router.get("/ui/targets")
def targets_page(service: ServiceDep, page: PageDep, cursor: Cursor = None) -> HTMLResponse:
    owner = page.caller.owner
    with service.database.read() as session:
        found = list_page(session, Target, owner, [], limit=TARGETS_PER_PAGE, cursor=cursor)
        return page.render(
            "targets.html",
            targets=[serialize_target(row) for row in found.items],
            kinds=KINDS.values(),
            next_cursor=found.next_cursor,
        )


@router.get("/ui/targets/{target}")
def target_page(target: Reference, service: ServiceDep, page: PageDep) -> HTMLResponse:
    with service.database.read() as session:
        row = find_named(session, Target, page.caller.owner, target)
        session.refresh(row, ["samples"])
        of_target = [Model.target_id == row.id]
        users = list_page(session, Model, row.owner, of_target, limit=MAX_PAGE, cursor=None)
        return page.render(
            "target.html",
            target=serialize_target(row),
            examples=_examples(row.kind),
            classes=_classes(row),
            splits=SPLITS,
            models=[serialize_model(model) for model in users.items],
        )


def _classes(target: Target) -> list[ClassRow]:
    summary = target.summary or {}
    counts: Mapping[str, Mapping[str, int]] = summary.get("counts", {})
    names: list[str] = summary.get("classes", [])
    table = {name: [counts.get(split, {}).get(name, 0) for split in SPLITS] for name in names}
    largest = max((sum(row) for row in table.values()), default=0) or 1
    samples = _samples(target)
    return [
        ClassRow(name, row, sum(row), bar(sum(row) / largest), samples.get(name, ()))
        for name, row in list(table.items())[:MOST_CLASSES]
    ]


def _samples(target: Target) -> dict[str, list[Sample]]:
    """A few examples of each class, as many of each as the page has room for."""
    found: dict[str, list[Sample]] = {}
    for sample in target.samples or ():
        png = sample.get("png")
        shown = Sample(png and f"data:image/png;base64,{png}", sample.get("text"))
        found.setdefault(sample["class"], []).append(shown)
    for most in range(MOST_SAMPLES, 0, -1):
        fewer = {name: samples[:most] for name, samples in found.items()}
        if sum(len(sample) for samples in fewer.values() for sample in samples) <= SAMPLE_ROOM:
            return fewer
    return {}


def _examples(kind: str) -> str:
    """What people call the examples of a kind; also of one that is not installed here any more."""
    return KINDS[kind].examples if kind in KINDS else "examples"
