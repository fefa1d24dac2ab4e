"""The web application; served by `grasp serve`, or by any ASGI server as `app.main:app`."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import Depends, FastAPI

from app.access.auth import authorize
from app.errors import install_error_handlers
from app.http.following import Following
from app.http.requests import RequestContext
from app.intake.uploads import TusHeaders
from app.metrics import RequestMetrics
from app.openapi import DESCRIPTION, TAGS, install_openapi
from app.pages import router as pages
from app.pages.rendering import PageMiddleware
from app.routes import files, jobs, models, sources, system, targets, uploads, versions
from app.service import Service
from app.startup import Startup
from registry.process.logs import configure_logs
from registry.process.settings import Settings
from registry.process.tracing import tracing


def create_app(
    settings: Settings | None = None, admit: Callable[[Service], None] = lambda _service: None
) -> FastAPI:
    """Build the application; every call gives a new one, so tests do not share state.

    `admit` looks at the database before any request does, and may raise Refused.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        configure_logs(app.state.settings)
        app.state.service = Service(app.state.settings)
        app.state.following = Following(app.state.service.database)
        app.state.startup = Startup(app.state.service, admit)
        await app.state.startup.begin()
        with tracing("grasp-api"):
            yield
        await app.state.startup.end()
        app.state.following.close()
        app.state.service.close()

    app = FastAPI(
        title="GRASP merge service",
        version=version("grasp-merge"),
        description=DESCRIPTION,
        openapi_tags=TAGS,
        lifespan=lifespan,
        dependencies=[Depends(authorize)],
        docs_url=None,  # of the pages, which need no network
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.settings = settings or Settings()
    for room in (targets, models, versions, files, sources, uploads, jobs, system):
        app.include_router(room.router)
    app.include_router(pages)
    install_error_handlers(app)
    install_openapi(app)
    app.state.request_metrics = RequestMetrics()
    app.add_middleware(RequestContext, metrics=app.state.request_metrics)
    app.add_middleware(PageMiddleware)
    app.add_middleware(TusHeaders)
    return app


app = create_app()
