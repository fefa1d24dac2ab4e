"""The API's documentation, from files of an installed package."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from app.pages.rendering import render

router = APIRouter()


@router.get("/docs")
def show_docs() -> HTMLResponse:
    return render("docs.html")
