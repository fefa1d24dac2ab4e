"""The web application; served by `grasp serve`, or by any ASGI server as `app.main:app`."""

from importlib.metadata import version
from typing import Literal

from fastapi import FastAPI
from pydantic import BaseModel


class Health(BaseModel):
    """The process is alive and answers; says nothing about what stands behind it."""

    status: Literal["ok"] = "ok"
    version: str


def create_app() -> FastAPI:
    """Build the application; every call gives a new one, so tests do not share state."""
    release = version("grasp-merge")
    app = FastAPI(title="GRASP merge service", version=release)

    @app.get("/healthz", summary="Is the process alive?")
    async def healthz() -> Health:
        return Health(version=release)

    return app


app = create_app()
