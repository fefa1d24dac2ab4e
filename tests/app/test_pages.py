"""The pages: empty, filled, and another owner's; what they show, and what they bind browsers to."""

import re

import pytest

from app.access.auth import POLICY
from app.main import create_app
from app.pages import PAGES
from registry.process.settings import Settings
from tests.app.reading import Outline, page
from tests.app.story import Story
from tests.app.world import World

LISTS = ("/", "/ui/models", "/ui/jobs", "/ui/upload", "/ui/targets", "/ui/workers")
OF_THE_STORY = (
    "/ui/models/merged",
    "/ui/models/{model}",
    "/ui/models/merged/versions/1",
    "/ui/models/merged/versions/2",
    "/ui/models/merged/versions/3",
    "/ui/models/merged/versions/4",
    "/ui/models/merged/compare?a=1&b=3",
    "/ui/models/merged/compare?a=2&b=4",
    "/ui/jobs?status=running",
    "/ui/jobs?model=merged",
    "/ui/jobs?status=&model=&kind=dry_run",
    "/ui/jobs/{folded}",
    "/ui/jobs/{rejected}",
    "/ui/jobs/{failed}",
    "/ui/jobs/{tried}",
    "/ui/jobs/{running}",
    "/ui/jobs/{queued}",
    "/ui/targets/digits",
    "/ui/upload?model=merged",
)


# Every page


@pytest.mark.parametrize("path", LISTS)
def test_without_anything_a_page_says_what_to_do_next(world: World, path: str) -> None:
    text = page(world, path)
    assert 'class="empty"' in text
    if path != "/ui/jobs":
        assert "<pre><code>" in text


@pytest.mark.parametrize("path", [*LISTS, *OF_THE_STORY])
def test_a_page_shows_what_there_is(filled: tuple[World, Story], path: str) -> None:
    world, story = filled
    text = page(world, path.format(**vars(story)))
    assert "site-c')</script>" not in text
    assert 'class="empty"' not in text


@pytest.mark.parametrize("path", OF_THE_STORY)
def test_to_another_owner_none_of_it_exists(filled: tuple[World, Story], path: str) -> None:
    world, story = filled
    stranger = world.key("bob", "admin")
    if "?status" in path or "upload" in path:
        text = page(world, path.format(**vars(story)), headers=stranger)
        assert "merged (" not in text
        assert "site-" not in text.replace("site-a.safetensors", "")
        return
    text = page(world, path.format(**vars(story)), 404, headers=stranger)
    assert "not_found" in text


@pytest.mark.parametrize("path", LISTS)
def test_another_owners_lists_are_empty(filled: tuple[World, Story], path: str) -> None:
    world, _ = filled
    text = page(world, path, headers=world.key("bob", "admin"))
    for name in ("merged", "digits"):
        assert not re.search(rf"/{name}\b|>{name}\b", text)


def test_no_page_is_in_the_openapi_document_and_each_is_tried_here() -> None:
    document = create_app(Settings()).openapi()
    assert not [path for path in document["paths"] if path == "/" or path.startswith("/ui")]
    templates = {path.partition("?")[0] for path in (*LISTS, *OF_THE_STORY)}
    of_pages = [
        route.path
        for module in PAGES
        for route in module.router.routes
        if POLICY[route.name] in ("read", "write") and not route.path.endswith(".json")
    ]
    for path in of_pages:
        pattern = re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)))
        assert any(pattern.fullmatch(tried) for tried in templates), path


def test_every_link_of_a_page_leads_somewhere(filled: tuple[World, Story]) -> None:
    world, story = filled
    seen: set[str] = set()
    for path in (*LISTS, *OF_THE_STORY):
        text = page(world, path.format(**vars(story)))
        base = path.partition("?")[0]
        for tag in Outline(text).tags:
            link = tag[1].get("href") or tag[1].get("src") or ""
            if link.startswith(("#", "data:")):
                continue
            seen.add(base + link if link.startswith("?") else link)
    seen.discard("")
    assert len(seen) > 30
    for link in seen:
        answer = world.client.head(link) if "/versions/" in link else world.client.get(link)
        if answer.status_code == 405:
            answer = world.client.get(link)
        assert answer.status_code == 200, link


# What browsers are bound to


@pytest.mark.parametrize("path", ["/", "/ui/login", "/ui/nonsense", "/docs"])
def test_pages_forbid_what_is_not_ours(world: World, path: str) -> None:
    headers = world.client.get(path).headers
    policy = dict(
        part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"


def test_nothing_in_a_page_needs_what_it_forbids(filled: tuple[World, Story]) -> None:
    world, story = filled
    for path in (*LISTS, *OF_THE_STORY, "/ui/login", "/docs"):
        answer = world.client.get(path.format(**vars(story)))
        outline = Outline(answer.text)
        for tag, attributes in outline.tags:
            assert tag != "style"
            assert "style" not in attributes
            assert not [name for name in attributes if name.startswith("on")]
            assert tag != "script" or attributes["src"]
            for name in ("src", "href", "action"):
                assert not (attributes.get(name) or "").startswith(("http", "//"))


def test_pages_are_not_kept_and_assets_are(world: World) -> None:
    answer = world.client.get("/")
    assert answer.headers["cache-control"] == "no-store"
    links = [tag["href"] for tag in Outline(answer.text).all("link")]
    scripts = [tag["src"] for tag in Outline(answer.text).all("script")]
    for link in (*links, *scripts):
        asset = world.client.get(str(link))
        assert asset.status_code == 200
        assert "immutable" in asset.headers["cache-control"]
        assert asset.headers["x-content-type-options"] == "nosniff"
        old = world.client.get(re.sub("static/[0-9a-f]+/", "static/0/", str(link)))
        assert (old.content, old.headers["cache-control"]) == (asset.content, "no-cache")


@pytest.mark.parametrize("name", ["nothing.css", "%2e%2e%2fauth.py", "..%5cauth.py"])
def test_there_are_no_other_files(world: World, name: str) -> None:
    assert "not_found" in page(world, f"/ui/static/0/{name}", 404)


def test_the_api_documentation_needs_no_network(world: World) -> None:
    world.key("ann", "admin")
    answer = world.client.get("/docs")
    outline = Outline(answer.text)
    assert [str(tag["src"]).rpartition("/")[2] for tag in outline.all("script")] == [
        "swagger-ui-bundle.js",
        "docs.js",
    ]
    for tag in outline.all("script"):
        assert world.client.get(str(tag["src"])).status_code == 200


# Errors


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/ui/nonsense", 404, "not_found"),
        ("/ui/models/nobody", 404, "not_found"),
        ("/ui/models/merged/versions/99", 404, "not_found"),
        ("/ui/models/merged/versions/zero", 422, "invalid_request"),
        ("/ui/models/merged/compare?a=1", 422, "invalid_request"),
        ("/ui/jobs/job_x", 404, "not_found"),
        ("/ui/jobs?status=unheard-of", 422, "invalid_request"),
        ("/ui/targets/nobody", 404, "not_found"),
    ],
)
def test_errors_are_pages_with_code_and_hint(
    filled: tuple[World, Story], path: str, status: int, code: str
) -> None:
    world, _ = filled
    page(world, path, status)
    answer = world.client.get(path)
    assert code in answer.text
    assert answer.headers["x-request-id"] in answer.text


NAVIGATION = '<nav aria-label="Main">'


@pytest.mark.parametrize(
    "path", ["/ui/nonsense", "/ui/models/nobody", "/ui/jobs?status=unheard-of"]
)
def test_an_error_page_has_the_way_to_all_others(filled: tuple[World, Story], path: str) -> None:
    world, _ = filled
    status = 422 if "?" in path else 404
    assert NAVIGATION in page(world, path, status)
    key = world.key("bob", "read")
    text = page(world, path, status, headers=key)
    assert NAVIGATION in text
    assert "/ui/upload" not in text  # which needs another key


def test_an_error_page_for_strangers_leads_nowhere(world: World) -> None:
    world.key("ann", "write")
    for headers in ({}, {"Authorization": "Bearer grasp_wrong"}):
        assert NAVIGATION not in page(world, "/ui/nonsense", 404, headers=headers)
    assert NAVIGATION in page(world, "/ui/upload", 403, headers=world.key("bob", "read"))
    answer = world.client.post("/ui/login", data={"key": "x"}, headers={"Origin": "null"})
    assert NAVIGATION not in answer.text


def test_names_of_architectures_are_listed_for_whoever_may_read(world: World) -> None:
    names = world.client.get("/ui/architectures.json").json()
    assert "mobilevit_xxs" in names
    assert names == sorted({*names})
    world.key("ann", "read")
    assert world.client.get("/ui/architectures.json", follow_redirects=False).status_code == 303


def test_errors_of_the_api_stay_problems(world: World) -> None:
    answer = world.client.get("/models/nobody")
    assert answer.headers["content-type"] == "application/problem+json"
    assert "content-security-policy" not in answer.headers


def test_a_page_that_breaks_is_a_page_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr("app.pages.jobs.list_workers", broken)
    text = page(world, "/ui/workers", 500)
    assert "internal_error" in text
    assert "secret" not in text


def test_what_a_page_is_asked_with_is_escaped(world: World) -> None:
    text = page(world, "/ui/models/%3Cscript%3E", 422)
    assert "<script>" not in text
    assert 'value="&lt;' not in text
