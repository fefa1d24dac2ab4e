"""A user's day in a real browser: from a target to a version, and back; and what can go wrong."""

from __future__ import annotations

import hashlib
import io
import re
import signal
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.visitor import Visitor, address, visiting
from tests.service.fake_folds import BAD_ARCHITECTURE, BAD_TARGET, chain, checkpoint
from tests.service.harness import Harness

LONG = 300  # ticks of a fold that is watched
ENDLESS = 10**6
A_LINE = re.compile(r"\d+\.\d,\d+\.\d \d+")


@pytest.fixture
def visitor(browser: Browser, empty: Harness) -> Iterator[Visitor]:
    with visiting(browser, address(empty)) as found:
        yield found


@pytest.fixture(scope="module")
def model(empty: Harness) -> str:
    """The name of a model that is being prepared."""
    for path, options in (
        ("/targets", {"params": {"name": "animals"}, "content": b"images"}),
        ("/models", {"json": {"name": "zoo", "architecture": "test_resnet", "target": "animals"}}),
    ):
        answer = empty.client.post(path, **options)
        assert answer.is_success, answer.text
    return "zoo"


def zip_of(name: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(name, b"\0")
    return content.getvalue()


def file(name: str, content: bytes) -> Any:
    return {"name": name, "mimeType": "application/octet-stream", "buffer": content}


def choose(visitor: Visitor, name: str, content: bytes, model: str) -> None:
    visitor.visit(f"/ui/upload?model={model}")
    visitor.page.get_by_label("Drop a safetensors file").set_input_files(file(name, content))


def submit(visitor: Visitor) -> None:
    visitor.page.locator("form").get_by_role("button", name="Upload").click()


def upload(visitor: Visitor, name: str, content: bytes, model: str) -> None:
    """Through the page, to the page of its job."""
    choose(visitor, name, content, model)
    submit(visitor)
    visitor.page.wait_for_url("**/ui/jobs/*")


@contextmanager
def at_rest(harness: Harness) -> Iterator[None]:
    """No job begins, so that none is over before it was seen."""
    harness.workers[0].send(signal.SIGSTOP)
    yield
    harness.workers[0].send(signal.SIGCONT)


def job_id(visitor: Visitor) -> str:
    return visitor.page.url.rpartition("/")[2]


def download(visitor: Visitor, name: str, folder: Path) -> bytes:
    with visitor.page.expect_download() as found:
        visitor.page.get_by_role("link", name=name).first.click()
    path = folder / found.value.suggested_filename
    found.value.save_as(path)
    return path.read_bytes()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def comes_to(visitor: Visitor, status: str) -> None:
    expect(visitor.page.locator("h1 .pill")).to_have_text(status, timeout=60_000)


def shows_two_curves(visitor: Visitor) -> None:
    """Of the candidate that runs, and of the one before it."""
    curves = visitor.page.locator("figure.live polyline")
    expect(curves).to_have_count(2)
    for curve in curves.all():
        expect(curve).to_have_attribute("points", A_LINE)
    expect(visitor.page.locator("figure.live [data-names] span")).to_have_text(["keep", "grasp"])
    expect(visitor.page.locator("[data-field=stage]")).to_have_text("grasp: Refine")


def confirm_deletion(visitor: Visitor, name: str) -> None:
    """Of what is asked for, after a second thought."""
    page = visitor.page
    page.get_by_role("button", name=name).click()
    page.get_by_role("button", name="Leave it").click()
    page.get_by_role("button", name=name).click()
    page.get_by_role("button", name="Go on").click()


def test_from_nothing_to_a_version_and_back(
    visitor: Visitor, empty: Harness, tmp_path: Path
) -> None:
    page = visitor.page
    sources = [checkpoint("a", ticks=LONG), checkpoint("b")]

    visitor.visit("/ui/targets")
    page.get_by_label("Drop an archive").set_input_files(file("faces.zip", b"images"))
    page.get_by_label("Name").fill("faces")
    page.get_by_role("button", name="Register the target").click()
    page.wait_for_url("**/ui/jobs/*")
    comes_to(visitor, "succeeded")

    visitor.visit("/#new-model")
    page.get_by_label("Name").fill("merged")
    page.get_by_label("Architecture").fill("test_resnet")
    page.get_by_label("Target").select_option("faces")
    page.get_by_role("button", name="Create the model").click()
    page.wait_for_url("**/ui/jobs/*")
    comes_to(visitor, "succeeded")

    with at_rest(empty):
        upload(visitor, "site-a.safetensors", sources[0], "merged")
        comes_to(visitor, "queued")
    expect(page.locator("figure.live")).to_be_visible()
    expect(page.locator(".steps [aria-current]")).to_have_text("Refine")
    assert page.locator("progress").evaluate("bar => bar.value") > 0
    shows_two_curves(visitor)
    with at_rest(empty):
        page.reload()
        shows_two_curves(visitor)  # from their start, not from here on
    comes_to(visitor, "succeeded")

    page.get_by_role("link", name="See version 1").click()
    expect(page.locator("h1")).to_have_text("merged, version 1")
    upload(visitor, "site-b.safetensors", sources[1], "merged")
    comes_to(visitor, "succeeded")

    visitor.visit("/ui/models/merged")
    assert sha256(download(visitor, "Download version 2", tmp_path)) == chain(sources)[1]
    page.get_by_role("button", name="Roll back to version 1").click()
    page.get_by_role("button", name="Leave it").click()
    expect(page.locator(".versions tbody tr")).to_have_count(2)
    page.get_by_role("button", name="Roll back to version 1").click()
    page.get_by_role("button", name="Go on").click()
    expect(page.locator(".versions tbody tr")).to_have_count(3)
    expect(page.locator(".versions tbody tr").first).to_contain_text("back to version 1")
    visitor.sees("Rolled back to version 1.")
    assert sha256(download(visitor, "Download version 3", tmp_path)) == chain(sources)[0]
    assert visitor.complaints == []


def test_candidates_and_a_base_are_chosen_with_a_new_model(
    visitor: Visitor, empty: Harness, model: str
) -> None:
    page, base = visitor.page, checkpoint("base")
    target = empty.client.get(f"/models/{model}/info").json()["target"]
    visitor.visit("/#new-model")
    page.get_by_label("Name").fill("chosen")
    page.get_by_label("Architecture").fill("test_resnet")
    page.get_by_label("Target").select_option(target)
    page.get_by_label("Image size").fill("96")
    page.get_by_label("keep", exact=True).uncheck()
    page.get_by_text("Initial weights, a base, and the parameters of candidates").click()
    page.get_by_label("Base", exact=True).set_input_files(file("base.safetensors", base))
    page.get_by_label("grasp.tau").fill("0.25")
    page.get_by_label("grasp.granularity").select_option("channel")
    page.get_by_role("button", name="Create the model").click()
    page.wait_for_url("**/ui/jobs/*")
    comes_to(visitor, "succeeded")

    made = empty.client.get("/models/chosen/info").json()
    methods = {each["method"]: each for each in made["merge"]["candidates"]}
    assert list(methods) == ["source", "mean", "grasp"]
    assert (methods["grasp"]["tau"], methods["grasp"]["granularity"]) == (0.25, "channel")
    assert made["preprocessing"]["image_size"] == 96
    assert made["base"]["sha256"] == sha256(base)
    assert visitor.complaints == []


def test_initial_weights_and_classes_are_given_with_a_new_model(
    visitor: Visitor, empty: Harness, model: str
) -> None:
    page, weights = visitor.page, checkpoint("initial")
    target = empty.client.get(f"/models/{model}/info").json()["target"]
    visitor.visit("/#new-model")
    assert page.locator("#architectures option").count() == 0
    page.get_by_label("Name").fill("begun")
    page.get_by_label("Architecture").fill("test_resnet")
    expect(page.locator('#architectures option[value="test_resnet"]')).to_have_count(1)
    page.get_by_label("Target").select_option(target)
    page.get_by_label("Classes").fill("lion, tiger")
    page.get_by_text("Other methods").click()
    page.get_by_label("task_arithmetic", exact=True).check()
    page.get_by_text("Initial weights, a base, and the parameters of candidates").click()
    page.get_by_label("Initial weights").set_input_files(file("first.safetensors", weights))
    page.get_by_label("They are the base, too").check()
    page.get_by_role("button", name="Create the model").click()
    page.wait_for_url("**/ui/jobs/*")
    comes_to(visitor, "succeeded")

    made = empty.client.get("/models/begun/info").json()
    assert made["classes"] == ["lion", "tiger"]
    assert made["base"]["sha256"] == sha256(weights)
    assert made["merge"]["candidates"][-1]["method"] == "task_arithmetic"
    (source,) = empty.client.get("/sources", params={"model": "begun"}).json()["items"]
    assert (source["name"], source["sha256"]) == ("initial", sha256(weights))
    assert visitor.complaints == []


def test_models_and_targets_are_deleted_after_a_question(visitor: Visitor, empty: Harness) -> None:
    page = visitor.page
    for name, content in (("spoiled", BAD_TARGET), ("spare", b"images")):
        answer = empty.client.post("/targets", params={"name": name}, content=content)
        assert answer.is_success, answer.text
    for name, architecture in (("hopeless", BAD_ARCHITECTURE), ("useful", "test_resnet")):
        described = {"name": name, "architecture": architecture, "target": "spare"}
        answer = empty.client.post("/models", json=described)
        assert answer.is_success, answer.text

    visitor.visit("/ui/targets")
    confirm_deletion(visitor, "Delete spoiled")
    visitor.sees("spoiled is deleted.")
    expect(page.get_by_role("link", name="spoiled")).to_have_count(0)

    visitor.visit("/")
    confirm_deletion(visitor, "Delete hopeless")
    visitor.sees("hopeless is deleted.")
    expect(page.get_by_role("link", name="hopeless")).to_have_count(0)
    assert visitor.complaints == []

    visitor.visit("/ui/targets/spare")
    confirm_deletion(visitor, "Delete")
    expect(page.locator("#message")).to_contain_text("still_used")
    assert page.url.endswith("/ui/targets/spare")

    visitor.visit("/ui/models/useful")
    confirm_deletion(visitor, "Delete")
    page.wait_for_url(f"{visitor.url}/")
    visitor.visit("/ui/targets/spare")
    confirm_deletion(visitor, "Delete")
    page.wait_for_url("**/ui/targets")
    expect(page.get_by_role("link", name="spare")).to_have_count(0)
    for path in ("/targets/spare", "/models/useful/info"):
        assert empty.client.get(path).status_code == 404


def test_jobs_are_chosen_by_what_they_are_about(visitor: Visitor, model: str) -> None:
    page = visitor.page
    visitor.visit("/ui/jobs")
    page.get_by_label("Model").select_option(model)
    page.get_by_label("Kind").select_option("prepare")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tbody th")).to_have_text([f"Prepare {model}"])
    expect(page.get_by_label("Model")).to_have_value(model)
    assert visitor.complaints == []


def test_a_file_may_be_dropped_and_only_tried(visitor: Visitor, model: str) -> None:
    page = visitor.page
    visitor.visit(f"/ui/upload?model={model}")
    dropped = page.evaluate_handle(
        """bytes => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(bytes)], "dropped.safetensors"));
          return transfer;
        }""",
        list(checkpoint("dropped")),
    )
    page.dispatch_event(".drop", "dragover", {"dataTransfer": dropped})
    page.dispatch_event(".drop", "drop", {"dataTransfer": dropped})
    visitor.sees("dropped.safetensors, ")
    page.get_by_label("Dry run").check()
    page.get_by_label("Class names").fill("cat, dog")
    submit(visitor)
    page.wait_for_url("**/ui/jobs/*")
    expect(page.locator("h1")).to_contain_text(f"Try dropped.safetensors on {model}")
    comes_to(visitor, "succeeded")
    visitor.sees("A dry run: nothing is published.")
    assert visitor.complaints == []


def test_a_job_is_cancelled_and_tried_again(visitor: Visitor, empty: Harness, model: str) -> None:
    page = visitor.page
    upload(visitor, "endless.safetensors", checkpoint("endless", ticks=ENDLESS), model)
    comes_to(visitor, "running")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Go on").click()
    comes_to(visitor, "cancelled")
    visitor.sees("cancelled by request")
    page.get_by_role("button", name="Try again").click()
    comes_to(visitor, "running")
    empty.client.post(f"/jobs/{job_id(visitor)}/cancel")
    comes_to(visitor, "cancelled")
    assert visitor.complaints == []


def test_a_failed_job_says_why_and_how_often(visitor: Visitor, model: str) -> None:
    content = checkpoint("bad", "raise", "die", "refuse")
    upload(visitor, "bad.safetensors", content, model)
    comes_to(visitor, "failed")
    for words in ("this checkpoint is no good", "train it again", "child_killed", "attempt 2"):
        visitor.sees(words)


@pytest.mark.parametrize(
    ("content", "classes", "expected"),
    [
        (zip_of("archive/data.pkl"), "", "it looks like one of torch.save"),
        (zip_of("x.npy"), "", "it is a NumPy archive: target data, not weights"),
        (b"hello", "", "is not a safetensors file"),
        (b"\xff" * 8 + b"{", "", "invalid_checkpoint"),
        (checkpoint("x").replace(b"digest", b"tensor"), "", "checkpoint_mismatch"),
        (checkpoint("x"), "cat, cat", "class names given twice"),
    ],
)
def test_what_cannot_be_folded_is_refused_with_a_reason(
    visitor: Visitor, model: str, content: bytes, classes: str, expected: str
) -> None:
    choose(visitor, "wrong.safetensors", content, model)
    visitor.page.get_by_label("Class names").fill(classes)
    submit(visitor)
    problem = visitor.page.locator(".outcome .problem")
    expect(problem).to_contain_text(expected)
    assert "/ui/upload" in visitor.page.url
    expect(visitor.page.locator("form").get_by_role("button", name="Upload")).to_be_enabled()


def test_a_name_that_is_taken_is_told_beside_the_form(visitor: Visitor, model: str) -> None:
    visitor.visit("/")
    visitor.page.evaluate("location.hash = 'new-model'")  # as a link on this page does
    visitor.page.get_by_label("Name").fill(model)
    visitor.page.get_by_label("Architecture").fill("test_resnet")
    visitor.page.get_by_role("button", name="Create the model").click()
    expect(visitor.page.locator(".outcome")).to_contain_text("name_taken")


def test_merge_parameters_are_changed_for_later_folds(
    visitor: Visitor, empty: Harness, model: str
) -> None:
    page = visitor.page
    visitor.visit(f"/ui/models/{model}#parameters")
    change = page.get_by_role("button", name="Change the parameters")
    before = empty.client.get(f"/models/{model}/info").json()["merge"]

    page.get_by_label("gate.max_drop").fill("2")
    page.get_by_label("candidates").fill('["source", {"method": "grasp", "tau": 7}]')
    change.click()
    wrong = page.locator(".wrong:visible")
    expect(wrong).to_have_text([re.compile("^1.tau: "), re.compile("^Input should be less")])
    expect(page.locator("[aria-invalid]")).to_have_count(2)
    expect(page.get_by_label("candidates")).to_be_focused()
    expect(page.get_by_label("gate.max_drop")).to_have_accessible_description(
        re.compile("Input should be less")
    )
    expect(page.locator(".outcome")).to_be_empty()
    assert empty.client.get(f"/models/{model}/info").json()["merge"] == before

    page.get_by_label("gate.max_drop").fill("0.1")
    page.get_by_label("candidates").fill('["source", {"method": "grasp", "tau": 0.25}]')
    page.get_by_label("refine.patience").fill("2")
    page.get_by_label("refine.augmentation.flip").select_option("false")
    change.click()
    visitor.sees("Later folds use these parameters.")
    expect(page.locator(".outcome")).to_be_empty()
    expect(page.locator(".wrong:visible, [aria-invalid]")).to_have_count(0)
    expect(page.locator(".changed", has=page.get_by_label("gate.max_drop"))).to_contain_text(
        "The default is 0.02."
    )
    kept = empty.client.get(f"/models/{model}/info").json()["merge"]
    source, grasp = kept.pop("candidates")
    assert (source, grasp["tau"]) == ({"method": "source"}, 0.25)
    del before["candidates"]
    assert kept == before | {
        "gate": before["gate"] | {"max_drop": 0.1},
        "refine": before["refine"]
        | {"patience": 2, "augmentation": before["refine"]["augmentation"] | {"flip": False}},
    }

    page.get_by_label("preset").select_option("paper")
    page.get_by_label("refine.patience").fill("")
    change.click()
    expect(page.get_by_label("alignment_batches")).to_have_value("1")
    expect(page.get_by_label("refine.patience")).to_have_value("")
    assert empty.client.get(f"/models/{model}/info").json()["merge"]["tau"] == 0.3


def test_a_server_that_is_away_is_told_and_waited_for(
    visitor: Visitor, empty: Harness, model: str
) -> None:
    choose(visitor, "late.safetensors", checkpoint("late", ticks=LONG), model)
    empty.api.send(signal.SIGKILL)
    empty.api.wait()
    submit(visitor)
    expect(visitor.page.locator(".outcome")).to_contain_text("The server does not answer.")
    empty.restart_api()
    empty.wait_for_api()
    submit(visitor)
    visitor.page.wait_for_url("**/ui/jobs/*")
    empty.api.send(signal.SIGKILL)  # while the page follows the job
    empty.restart_api()
    comes_to(visitor, "succeeded")


def test_other_pages_follow_what_happens(visitor: Visitor, empty: Harness, model: str) -> None:
    visitor.visit(f"/ui/models/{model}")
    visitor.page.get_by_text("Merge parameters").click()
    answer = empty.client.post(
        "/sources", params={"model": model, "name": "elsewhere"}, content=checkpoint("elsewhere")
    )
    assert answer.status_code == 202
    expect(visitor.page.locator(".versions")).to_contain_text("elsewhere", timeout=60_000)
    expect(visitor.page.get_by_label("refine.epochs")).to_be_visible()
    assert visitor.complaints == []
