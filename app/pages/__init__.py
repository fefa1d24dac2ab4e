"""The dashboard: pages for people. Everything they do goes through the API, like anybody else."""

from fastapi import APIRouter

from app.pages import assets, jobs, login, models, targets, versions

PAGES = (models, versions, jobs, targets, login, assets)

router = APIRouter(include_in_schema=False)
for module in PAGES:
    router.include_router(module.router)
