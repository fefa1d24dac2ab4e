"""Pages as a reader meets them: parsed, with what all of them have in common checked."""

from html.parser import HTMLParser
from typing import Any

from tests.app.world import World

MAX_BYTES = 300_000


class Outline(HTMLParser):
    """What a page consists of; raises if tags are not closed in order."""

    VOID = ("meta", "link", "input", "img", "br", "hr")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page(world: World, path: str, status: int = 200, **options: Any) -> str:
    answer = world.client.get(path, follow_redirects=False, **options)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert len(answer.content) < MAX_BYTES
    text = str(answer.text)
    outline = Outline(text)
    assert len(outline.all("h1")) == 1
    assert len(outline.all("main")) == 1
    return text
