"""Finding and listing what is one's own; identifiers that sort by age."""

import re
import time
from contextlib import suppress

import pytest

from grasp_core.config import RefineConfig
from registry import lookup, targets
from registry.errors import NotFound
from registry.tables import Job, Model, Source, Target
from tests.configs import grasp_alone
from tests.registry.conftest import World


def ids_of(world: World, table: type[lookup.Row], owner: str, page: int) -> list[list[str]]:
    """All pages."""
    pages, cursor = [], None
    while True:
        with world.database.read() as session:
            found = lookup.list_page(session, table, owner, (), limit=page, cursor=cursor)
        pages.append([row.id for row in found.items])
        cursor = found.next_cursor
        if cursor is None:
            return pages


def finders(world: World, table: type[lookup.Row], id_: str) -> list[str]:
    """Who finds the row, by whatever looks like its id."""
    found = []
    with world.database.read() as session:
        for owner, asked in (("ann", id_), ("bob", id_), ("ann", id_[:-1]), ("ann", "")):
            with suppress(NotFound):
                found.append(f"{owner} {lookup.find(session, table, owner, asked).id}")
    return found


def test_a_strangers_id_is_as_good_as_none(world: World) -> None:
    model = world.ready_model(owner="ann")
    source, job, _ = world.offer(model, "a")

    assert finders(world, Target, model.target_id) == [f"ann {model.target_id}"]
    assert finders(world, Model, model.id) == [f"ann {model.id}"]
    assert finders(world, Source, source.id) == [f"ann {source.id}"]
    assert finders(world, Job, job.id) == [f"ann {job.id}"]


def test_targets_and_models_are_found_by_name_too(world: World) -> None:
    ann, bob = (world.ready_model("merged", owner=owner) for owner in ("ann", "bob"))

    with world.database.read() as session:
        assert lookup.find_named(session, Model, "ann", "merged").id == ann.id
        assert lookup.find_named(session, Model, "bob", "merged").id == bob.id
        assert lookup.find_named(session, Model, "bob", bob.id).id == bob.id
        for reference in (ann.id, "Merged", "%", ""):
            with pytest.raises(NotFound, match="GET /models"):
                lookup.find_named(session, Model, "bob", reference)


def test_an_id_wins_over_a_name(world: World) -> None:
    old, _ = world.add_target("old")
    new, _ = world.add_target(old.id)
    newest, _ = world.add_target(new.id)

    with world.database.read() as session:
        assert lookup.find_named(session, Target, "ann", old.id).id == old.id
        assert lookup.find_named(session, Target, "ann", new.id).id == new.id
        assert lookup.find_named(session, Target, "ann", newest.id).id == newest.id


@pytest.mark.parametrize("page", [1, 3, 6, 7, 200])
def test_pages_cover_everything_once_and_newest_first(world: World, page: int) -> None:
    world.add_target("a stranger's", owner="bob")
    mine = []
    for i in range(6):
        mine.append(world.add_target(f"target {i}")[0].id)
        time.sleep(0.001)  # an id counts milliseconds

    pages = ids_of(world, Target, "ann", page)

    assert [id_ for page_ in pages for id_ in page_] == mine[::-1]
    assert [len(page_) for page_ in pages[:-1]] == [page] * (len(pages) - 1)


def test_an_empty_list_is_one_empty_page(world: World) -> None:
    assert ids_of(world, Source, "ann", 10) == [[]]


def test_rows_added_meanwhile_neither_repeat_nor_hide_others(world: World) -> None:
    model = world.ready_model()
    there = {world.offer(model, f"old {i}")[0].id for i in range(10)}
    time.sleep(0.001)
    seen: list[str] = []
    cursor = None
    while True:
        with world.database.read() as session:
            page = lookup.list_page(session, Source, "ann", (), limit=3, cursor=cursor)
        seen += [row.id for row in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
        world.offer(model, f"new after {len(seen)}")

    assert len(seen) == len(set(seen))
    assert set(seen) == there


LONG = [f"class {number:05}" for number in range(10_000)]


def test_a_list_leaves_long_class_names_where_they_are(world: World) -> None:
    target = world.ready_target()
    short, _ = world.add_model(target, "short", classes=("F", "M"))
    long, _ = world.add_model(target, "long", classes=LONG)
    none, _ = world.add_model(target, "none", classes=None)

    with world.database.read() as session:
        rows = lookup.list_page(session, Model, "ann", (), limit=9, cursor=None).items
        listed = {row.id: (row.classes, row.class_count) for row in rows}
        jobs = lookup.list_page(session, Job, "ann", (), limit=9, cursor=None).items
        assert [job.candidate for job in jobs] == [None] * len(jobs)

    assert listed == {short.id: (["F", "M"], 2), long.id: (None, 10_000), none.id: (None, None)}
    assert world.get(Model, long.id).classes == LONG


def test_a_list_of_targets_counts_what_it_leaves_out(world: World) -> None:
    target, job = world.add_target()
    waiting, _ = world.add_target("waiting")
    counts = {"train": dict.fromkeys(LONG, 1)}
    summary = {"classes": LONG, "counts": counts, "images": 7, "broken": [], "fingerprint": "f"}
    lease = world.lease_of(job)
    with world.database.write() as session:
        targets.record_validation(session, lease, summary, world.now)

    with world.database.read() as session:
        rows = lookup.list_page(session, Target, "ann", (), limit=9, cursor=None).items
        listed = {row.id: (row.summary or {}, row.class_count) for row in rows}

    known, count = listed[target.id]
    assert count == 10_000
    assert (known["classes"], known["counts"]) == (None, None)
    assert (known["images"], known["broken"], known["fingerprint"]) == (7, [], "f")
    assert {*listed[waiting.id][0].values(), listed[waiting.id][1]} == {None}


def test_a_dry_run_in_a_list_has_its_name(world: World) -> None:
    model = world.ready_model()
    job = world.try_out(model, "site-a")

    with world.database.read() as session:
        rows = lookup.list_page(session, Job, "ann", [Job.id == job.id], limit=9, cursor=None)

        assert [row.candidate for row in rows.items] == [{"name": "site-a"}]


def test_a_page_ends_early_where_its_rows_are_large(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = world.ready_target()
    frozen = RefineConfig(freeze=["x" * 100] * 20)
    large = grasp_alone(refine=frozen)
    mine = []
    for number in range(6):
        mine.append(world.add_model(target, f"model {number}", merge=large)[0].id)
        time.sleep(0.001)
    assert ids_of(world, Model, "ann", 6) == [mine[::-1]]

    monkeypatch.setattr(lookup, "PAGE_SIZE", 7000)  # two such rows, and not three
    pages = ids_of(world, Model, "ann", 6)
    assert [len(page) for page in pages] == [2, 2, 2]
    assert [id_ for page in pages for id_ in page] == mine[::-1]

    monkeypatch.setattr(lookup, "PAGE_SIZE", 1)
    assert ids_of(world, Model, "ann", 6) == [[id_] for id_ in mine[::-1]]


def test_conditions_narrow_a_list(world: World) -> None:
    model = world.ready_model()
    _, job, _ = world.offer(model, "a")

    with world.database.read() as session:
        waiting = [Job.status == "queued", Job.model_id == model.id]
        page = lookup.list_page(session, Job, "ann", waiting, limit=9, cursor=None)

    assert [row.id for row in page.items] == [job.id]


def test_ids_are_unique_and_readable() -> None:
    made = {lookup.new_id("job") for _ in range(10_000)}

    assert len(made) == 10_000
    assert all(re.fullmatch(r"job_[0-9a-hjkmnp-tv-z]{26}", id_) for id_ in made)


def test_ids_sort_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = [0, 1, 31, 32, 1_700_000_000_000, 1_700_000_000_001, 2**47, 2**48 - 1]
    made = []
    for moment in moments:
        monkeypatch.setattr(time, "time_ns", lambda moment=moment: moment * 1_000_000)
        made.append(lookup.new_id("mdl"))

    assert made == sorted(made)
    assert {len(id_) for id_ in made} == {30}
