"""Scripts and styles of the pages, under a path that changes with their content."""

import hashlib
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse

from registry.errors import NotFound

FOREVER = "public, max-age=31536000, immutable"
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
SWAGGER = ("swagger-ui.css", "swagger-ui-bundle.js")  # of /docs, which works without a network

router = APIRouter()


def _find_assets() -> dict[str, Path]:
    own = Path(__file__).parents[1] / "static"
    swagger = Path(str(files("fastapi_offline"))) / "static"
    found = [*own.iterdir(), *(swagger / name for name in SWAGGER)]
    return {path.name: path for path in found if path.suffix in KINDS}


def _digest(assets: dict[str, Path]) -> str:
    """Of all together: scripts that import each other must be of one kind."""
    whole = hashlib.sha256()
    for name, path in sorted(assets.items()):
        whole.update(name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()[:16]


ASSETS = _find_assets()
DIGEST = _digest(ASSETS)


def asset(name: str) -> str:
    """Where a page finds this file."""
    return f"/ui/static/{DIGEST}/{ASSETS[name].name}"


@router.get("/ui/static/{digest}/{name}")
def get_asset(digest: str, name: str) -> FileResponse:
    """Under an old digest too, for a page of another release, but then not to be kept."""
    path = ASSETS.get(name)
    if path is None:
        raise NotFound(f"there is no file {name!r}")
    kept = FOREVER if digest == DIGEST else "no-cache"
    return FileResponse(path, media_type=KINDS[path.suffix], headers={"Cache-Control": kept})
