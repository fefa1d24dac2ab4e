"""What the site needs beyond Markdown: links to files outside of docs/ become plain text there.

On a code host they lead to the code; the site has none to lead to. A file that is not there fails
the build either way.
"""

import logging
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page

LINK_UP = re.compile(r"\[([^]]+)]\((\.\./[^)#\s]+)[^)]*\)")

log = logging.getLogger("mkdocs.hooks")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    folder = Path(config.docs_dir, page.file.src_uri).parent

    def without_outer_link(link: re.Match[str]) -> str:
        text, path = link.groups()
        file = (folder / path).resolve()
        if file.is_relative_to(config.docs_dir):
            return link[0]
        if not file.exists():
            log.warning("%s links to %s, which does not exist", page.file.src_uri, path)
        return text

    return LINK_UP.sub(without_outer_link, markdown)
