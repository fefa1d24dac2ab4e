"""The dashboard: pages for people. Everything they do goes through the API, like anybody else."""

from fastapi import APIRouter

from app.pages import (
    assets,
    compare,
    docs,
    jobs,
    login,
    models,
    targets,
    upload,
    versions,
    workers,
)

ROOMS = (models, compare, versions, jobs, upload, targets, workers, login, docs, assets)

router = APIRouter(include_in_schema=False)
for room in ROOMS:
    router.include_router(room.router)
