"""What the pages show, of models, versions, jobs, targets and workers."""

import json
import re

import pytest

from app.pages.reports import origins
from app.pages.versions import MOST_VERSIONS
from grasp_core.methods import METHODS
from grasp_core.parameters import DEFAULT_CANDIDATES, flatten
from grasp_core.report import FoldReport
from registry.jobs.transitions import change
from registry.tables import Job, Model, Target, utc_now
from registry.versions import FoldResult, record_trial
from tests.app.reading import MAX_BYTES, Outline, page
from tests.app.story import CLASSES, HOSTILE, Story, race, report
from tests.app.world import World, checkpoint

SCRIPTS_AND_STYLE = 40_000  # what a page needs besides itself, at most


def test_the_models_page_shows_each_at_a_glance(filled: tuple[World, Story]) -> None:
    world, _ = filled
    world.post_model("second", "digits")
    text = page(world, "/")
    assert text.index("/ui/models/second") < text.index("/ui/models/merged")
    assert "96.6\u202f%" in text
    assert text.count('class="sparkline"') == 1
    assert "Version 4" in text
    assert "fold 40\u202f%" in text
    assert "1 in the queue" in text
    assert "No version yet" in text


def test_the_models_page_has_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.pages.models.MODELS_PER_PAGE", 2)
    for number in range(3):
        world.ready_model(f"model-{number}")
    text = page(world, "/")
    assert "model-2" in text
    assert "model-0" not in text
    (cursor,) = re.findall(r"\?cursor=(\w+)", text)
    older = page(world, f"/?cursor={cursor}")
    assert "model-0" in older
    assert "model-2" not in older
    assert "?cursor" not in older


def test_a_model_shows_its_lineage_and_where_it_came_from(filled: tuple[World, Story]) -> None:
    world, story = filled
    text = page(world, "/ui/models/merged")
    outline = Outline(text)
    assert "Accuracy of each version" in text
    assert "back to version 2" in text
    assert "dot s0 hollow" in text  # the way back
    assert text.count('class="band"') == 7
    for name in ("site-a", "site-b", "&lt;script&gt;", "site-d"):
        assert re.search(rf'class="name">{name}[^<]*</span> <b>\d+\.\d', text), name
    for name in CLASSES:
        assert f'<th scope="row">{name}</th>' in text
    posts = [tag["data-post"] for tag in outline.all("button") if "data-post" in tag]
    assert posts == [f"/models/{story.model}", *[f"/models/{story.model}/rollback"] * 3]
    bodies = [
        json.loads(tag["data-body"] or "") for tag in outline.all("button") if "data-body" in tag
    ]
    assert bodies == [{"version": number} for number in (3, 2, 1)]
    assert "refine.epochs" in text


def test_merge_parameters_are_fields_for_those_who_may_change_them(
    filled: tuple[World, Story],
) -> None:
    world, story = filled
    merge = world.client.get("/models/merged/info").json()["merge"]
    outline = Outline(page(world, "/ui/models/merged"))
    assert {"data-merge": f"/models/{story.model}", "autocomplete": "off"} in outline.all("form")
    named = [tag for tag in (*outline.all("input"), *outline.all("select")) if "data-kept" in tag]
    common = {name: value for name, value in merge.items() if name != "candidates"}
    assert {tag["name"] for tag in named} == {"candidates", *flatten(common)} - {"device"}
    legends = re.findall(r"<legend>(\w+)</legend>", page(world, "/ui/models/merged"))
    assert legends == ["General", "Refine", "Gate"]
    readers = page(world, "/ui/models/merged", headers=world.key("local", "read"))
    assert "data-merge" not in readers
    assert "<dt>refine.epochs</dt><dd>3</dd>" in readers


def test_merge_parameters_that_differ_from_the_defaults_are_marked(world: World) -> None:
    world.ready_model()
    path = "/ui/models/merged"
    assert "The default is" not in page(world, path)
    change = {"gate": {"max_drop": 0.1}, "refine": {"patience": 2}, "candidates": ["grasp"]}
    assert world.client.patch("/models/merged", json={"merge": change}).is_success
    text = page(world, path)
    assert text.count('<div class="changed">') == 3
    for default in ("keep, source, mean, grasp", "0.02", "none"):
        assert f"<b>The default is {default}.</b>" in text
    readers = page(world, path, headers=world.key("local", "read"))
    assert "<dd>0.1 <small><b>The default is 0.02.</b>" in readers


def deletions(text: str) -> list[str | None]:
    buttons = Outline(text).all("button")
    assert all(tag["data-confirm"] for tag in buttons if tag.get("data-method") == "DELETE")
    return [tag["data-post"] for tag in buttons if tag.get("data-method") == "DELETE"]


def test_whoever_may_write_can_delete_models_and_targets(filled: tuple[World, Story]) -> None:
    world, story = filled
    of_pages = {
        "/ui/models/merged": [f"/models/{story.model}"],
        "/ui/targets/digits": [f"/targets/{story.target}"],
        "/": [],  # but for what failed
        "/ui/targets": [],
    }
    for path, expected in of_pages.items():
        assert deletions(page(world, path)) == expected
    reader = world.key("local", "read")
    for path in of_pages:
        assert deletions(page(world, path, headers=reader)) == []


def test_what_failed_can_be_deleted_where_it_is_listed(world: World) -> None:
    target = world.post_target("spoiled").json()["target"]["id"]
    world.fail()
    world.ready_target()
    model = world.post_model().json()["model"]["id"]
    world.fail()
    for path in ("/ui/targets", "/ui/targets/spoiled"):
        assert deletions(page(world, path)) == [f"/targets/{target}"]
    for path in ("/", "/ui/models/merged"):
        assert deletions(page(world, path)) == [f"/models/{model}"]


def test_methods_that_are_no_default_are_folded_away(filled: tuple[World, Story]) -> None:
    world, _ = filled
    before, _, others = page(world, "/").partition('<details id="other-methods">')
    others = others.partition("</details>")[0]
    candidates = r'name="candidates" value="(\w+)"( checked)?'
    assert re.findall(candidates, before) == [(name, " checked") for name in DEFAULT_CANDIDATES]
    rest = [(name, "") for name in METHODS if name not in DEFAULT_CANDIDATES]
    assert re.findall(candidates, others) == rest


def test_jobs_are_chosen_by_model_kind_and_status(filled: tuple[World, Story]) -> None:
    world, _ = filled
    world.post_model("second", "digits")
    title = r'<a href="/ui/jobs/job_\w+">([^<]+)</a>'

    def titles(query: str) -> list[str]:
        return re.findall(title, page(world, f"/ui/jobs?{query}"))

    assert titles("status=&model=&kind=dry_run") == ["Try site-f on merged"]
    assert titles("status=&model=second&kind=") == ["Prepare second"]
    assert titles("kind=validate") == ["Validate digits"]
    assert titles("kind=fold&status=running&model=merged") == ["Fold site-g into merged"]
    assert len(titles("status=&model=&kind=")) == len(titles("")) > 5
    chosen = Outline(page(world, "/ui/jobs?kind=prepare&model=second")).all("option")
    selected = [tag["value"] for tag in chosen if "selected" in tag]
    assert selected == ["second", "prepare"]
    assert {"second", "merged", "dry_run", "cancelled"} <= {tag["value"] for tag in chosen}


def test_older_jobs_are_of_the_same_choice(
    filled: tuple[World, Story], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, _ = filled
    monkeypatch.setattr("app.pages.jobs.JOBS_PER_PAGE", 1)
    text = page(world, "/ui/jobs?kind=fold&model=merged&status=succeeded")
    (link,) = (tag["href"] for tag in Outline(text).all("a") if "cursor" in (tag["href"] or ""))
    assert re.fullmatch(r"\?cursor=\w+&model=merged&kind=fold&status=succeeded", link or "")
    assert "Fold site-b into merged" in page(world, f"/ui/jobs{link}")


def test_tables_of_a_comparison_scroll_by_themselves(filled: tuple[World, Story]) -> None:
    world, story = filled
    reported = json.dumps(report() | {"config": {"tau": 0.9}})
    with world.database.write() as session:
        change(session, Job, Job.id == story.folded, {"report": reported})
    text = page(world, "/ui/models/merged/compare?a=1&b=3")
    assert "Merge parameters that differ" in text
    assert text.count('<div class="scroll') == text.count("<table")


def test_a_versions_report_has_all_its_parts(filled: tuple[World, Story]) -> None:
    world, _ = filled
    text = page(world, "/ui/models/merged/versions/3")
    for heading in (
        "Alignment",
        "Where its parameters came from",
        "Before and after",
        "What the gate saw",
        "What the source was worth",
        "Confusion",
        "Refinement",
        "Stages",
        "How it was computed",
    ):
        assert f">{heading}<" in text
    assert "τ 0.300" in text
    taken = [parameter["transferred"] for parameter in report()["parameters"]]
    assert text.count('<g class="taken">') == sum(taken) > 20
    assert text.count('<g class="left">') == len(taken) - sum(taken) > 20
    assert "Gradients of the merged model" in text
    assert "448\u202fMiB" in text
    assert "0.992" in text  # informativeness
    assert "Of 179 validation examples, <b>2</b> were right before" in text
    assert "A fall of less than <b>3.4</b> points would have passed." in text
    assert text.count(" points</td>") == 10  # the smallest fall of each class
    assert "The best look at validation is kept: after 2 epochs." in text


def test_candidates_stand_beside_each_other(filled: tuple[World, Story]) -> None:
    world, _ = filled
    text = page(world, "/ui/models/merged/versions/2")

    sentence = (
        "+1.1 points on test over doing without it (-0.9 to 3.1); grasp won over keep, source"
    )
    assert f"<strong>{sentence}.</strong>" in text
    assert text.count('class="gain"') == 2 * 2  # of source and grasp, in both measures
    assert '<span class="pill won">won</span>' in text
    assert '<span class="pill">left behind</span>' in text
    assert "Out of the race: its outputs are not finite." in text
    assert "The same weights as <b>grasp</b>" in text
    assert "Validation loss of each candidate" in text
    for slot in (0, 1, 3):  # of those that were refined
        assert text.count(f'class="line s{slot}"') >= 2
    assert "would be without it (informativeness" in text
    assert "grasp: Refine" in text


def test_one_candidate_alone_has_no_rivals(filled: tuple[World, Story]) -> None:
    world, _ = filled
    assert ">Candidates<" not in page(world, "/ui/models/merged/versions/1")


def test_a_model_shows_what_each_source_was_worth(filled: tuple[World, Story]) -> None:
    world, _ = filled
    text = page(world, "/ui/models/merged")

    assert ">What each source was worth<" in text
    assert text.count('class="gain"') == 1  # the others ran alone, or were refused
    part = text.partition(">What each source was worth<")[2].partition("</section>")[0]
    places = [
        part.index(words)
        for words in (
            "The first: nothing to compare with",
            "Grasp won over keep, source",
            "It ran alone: nothing to compare with",
            "Refused: validation accuracy fell by 0.1",
        )
    ]
    assert places == sorted(places)
    assert "+1.1 " in text


def test_a_way_back_says_whose_report_it_shows(filled: tuple[World, Story]) -> None:
    world, _ = filled
    assert "Equal to" in page(world, "/ui/models/merged/versions/4")


def test_warnings_are_shown(world: World) -> None:
    world.ready_model()
    world.post_source(checkpoint(1))
    lease = world.claim()
    reported = report() | {"warnings": ["only 0.01% of the parameters were transferred"]}
    with world.database.write() as session:
        record_trial(session, lease, FoldResult(None, json.dumps(reported), {}), utc_now())
    text = page(world, f"/ui/jobs/{lease.job_id}")
    assert "only 0.01% of the parameters were transferred" in text


def test_comparing_says_what_changed(filled: tuple[World, Story]) -> None:
    world, _ = filled
    text = page(world, "/ui/models/merged/compare?a=2&b=4")
    assert "Both have the same weights, byte for byte." in text
    assert "Both have" not in page(world, "/ui/models/merged/compare?a=1&b=2")


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ("queued", ["Fold site-h into merged", "behind 1 other job", "Cancel"]),
        ("running", ["Fold site-g into merged", "40\u202f%", 'aria-current="step"', "Cancel"]),
        ("folded", ["See version 3", "Download it", "Alignment"]),
        (
            "rejected",
            ["gate_rejected", "validation accuracy fell by 0.1", "Try again", "Alignment"],
        ),
        ("failed", ["out_of_memory", "a smaller batch", "attempt 1", "attempt 2", "Try again"]),
        ("tried", ["Try site-f on merged", "A dry run", "Alignment"]),
    ],
)
def test_a_job_shows_where_it_is_and_what_can_be_done(
    filled: tuple[World, Story], which: str, expected: list[str]
) -> None:
    world, story = filled
    text = page(world, f"/ui/jobs/{vars(story)[which]}")
    for words in expected:
        assert words in text
    assert ("/events" in text) == (which in ("queued", "running"))


def test_a_target_shows_its_classes_with_pictures(filled: tuple[World, Story]) -> None:
    world, _ = filled
    text = page(world, "/ui/targets/digits")
    images = Outline(text).all("img")
    samples = [image for image in images if str(image["src"]).startswith("data:image/png;base64,")]
    assert len(samples) == 40
    assert all(image["alt"] for image in samples)
    assert "7/x.png" in text
    assert "cut off" in text


def test_many_samples_leave_room_for_the_page(filled: tuple[World, Story]) -> None:
    world, _ = filled
    large = [{"class": name, "split": "train", "png": "A" * 6000} for name in CLASSES * 4]
    with world.database.write() as session:
        change(session, Target, Target.name == "digits", {"samples": large})
    images = [i for i in Outline(page(world, "/ui/targets/digits")).all("img") if i["alt"]]
    assert len(images) == 20  # two of each


def test_workers_show_what_they_do_but_not_for_whom(filled: tuple[World, Story]) -> None:
    world, story = filled
    assert f"/ui/jobs/{story.running}" in page(world, "/ui/workers")
    strangers = page(world, "/ui/workers", headers=world.key("bob", "read"))
    assert story.running not in strangers
    assert "another owner's" in strangers.replace("&#39;", "'")


def test_upload_offers_the_models_that_can_take_a_source(filled: tuple[World, Story]) -> None:
    world, story = filled
    world.post_model("broken", "digits")
    world.fail()
    outline = Outline(page(world, "/ui/upload?model=merged"))
    assert outline.all("option") == [{"value": story.model, "selected": None}]


def test_names_of_classes_and_models_are_escaped(world: World) -> None:
    world.ready_target()
    summary = {"classes": [HOSTILE], "counts": {"train": {HOSTILE: 3}}, "images": 3}
    with world.database.write() as session:
        change(session, Target, Target.name == "faces", {"summary": summary})
    assert "<script>alert" not in page(world, "/ui/targets/faces")


def test_reports_of_other_shapes_break_no_page(world: World) -> None:
    """Of older folds, or of fake ones: what is not told is not shown."""
    world.ready_model()
    world.fold(1)
    world.fold(2)
    for path, heading in (
        ("", "merged"),
        ("/versions/1", "merged, version 1"),
        ("/versions/2", "merged, version 2"),
        ("/compare?a=1&b=2", "Version 1 and version 2"),
    ):
        assert f"<h1>{heading}" in page(world, f"/ui/models/merged{path}")


def test_a_large_network_with_a_long_history_stays_light(
    filled: tuple[World, Story],
) -> None:
    world, story = filled
    names = [f"stages.{a}.{b}.{c}.weight" for a in range(4) for b in range(20) for c in "vwxyz"]
    reported = report()
    sources = list(reported["provenance"]["shares"]["bn1.bias"])
    reported["parameters"] = [
        {"name": name, "size": 589_824, "alignment": 0.123456789, "transferred": 0.5}
        for name in names
    ]
    reported["provenance"] = {"shares": {name: dict.fromkeys(sources, 0.5) for name in names}}
    classes = [f"class number {number}" for number in range(20)]
    for split in reported["metrics"]["after"].values():
        split["confusion_matrix"] = [[1000] * 20] * 20
    with world.database.write() as session:
        change(session, Model, Model.id == story.model, {"classes": classes})
        change(session, Job, Job.id == story.folded, {"report": json.dumps(reported)})
    for _ in range(MOST_VERSIONS):
        world.client.post("/models/merged/rollback", json={"version": 3})

    for path in ("/ui/models/merged", "/ui/models/merged/versions/3", f"/ui/jobs/{story.folded}"):
        assert len(page(world, path).encode()) < MAX_BYTES - SCRIPTS_AND_STYLE


@pytest.mark.parametrize(("method", "said"), [("ties", True), ("mean", False)])
def test_shares_that_are_estimates_say_so(method: str, said: bool) -> None:
    reported = FoldReport.model_validate(race())
    winner = reported.candidates[-2].model_copy(update={"method": method})
    reported = reported.model_copy(update={"candidates": (winner,)})

    found = origins(reported, {})

    assert found is not None
    assert found.estimated_by == (method if said else None)
