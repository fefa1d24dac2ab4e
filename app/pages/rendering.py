"""Templates, and what every page knows: who looks at it."""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from app.access.auth import CallerDep
from app.access.browsers import COOKIE
from app.pages.assets import asset
from app.pages.words import FILTERS
from registry.jobs.states import ACTIVE
from registry.keys import Caller

TEMPLATES = Path(__file__).parents[1] / "templates"

environment = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
environment.filters.update(FILTERS)
environment.globals.update(asset=asset, release=version("grasp-merge"), ACTIVE=ACTIVE)


def render(
    template: str,
    *,
    status_code: int = 200,
    caller: Caller | None = None,
    signed_in: bool = False,
    **context: Any,
) -> HTMLResponse:
    """A page; without a caller, one that anybody may see."""
    text = environment.get_template(template).render(
        caller=caller,
        signed_in=signed_in,
        may_write=caller is not None and caller.may("write"),
        **context,
    )
    return HTMLResponse(text, status_code, headers={"Cache-Control": "no-store"})


@dataclass(frozen=True)
class Page:
    """A page on its way to whoever asked for it."""

    caller: Caller
    signed_in: bool
    address: str  # of the service, as the browser knows it

    def show(self, template: str, **context: Any) -> HTMLResponse:
        return render(template, **vars(self), **context)


def get_page(request: Request, caller: CallerDep) -> Page:
    address = str(request.base_url).rstrip("/")
    return Page(caller, signed_in=COOKIE in request.cookies, address=address)


PageDep = Annotated[Page, Depends(get_page)]
