"""`grasp sources`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from grasp_cli.arguments import Limit
from grasp_cli.session import Session, group, online

if TYPE_CHECKING:
    from rich.table import Table

    from grasp_client import Source

sources = group("The checkpoints that were offered.")


@sources.command("list")
@online
def list_sources(
    session: Session,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    status: Annotated[
        str | None, typer.Option(help="queued, running, succeeded, rejected, failed, cancelled.")
    ] = None,
    limit: Limit = 50,
) -> None:
    """List sources, newest first."""
    from grasp_cli.tables import sources_table

    found = session.grasp.sources.list(model=model, status=status, limit=limit)
    session.give(
        found,
        lambda: sources_table(
            found, {model.id: model.name for model in session.grasp.models.list()}
        ),
    )


@sources.command("show")
@online
def show_source(
    session: Session, source: Annotated[str, typer.Argument(help="Id of a source, src_…")]
) -> None:
    """What became of a source."""
    found = session.grasp.sources.get(source)
    session.give(found, lambda: _details(found))


def _details(source: Source) -> Table:
    from grasp_cli.tables import age, details, size, some, status

    return details(
        {
            "source": source.name,
            "id": source.id,
            "model": source.model,
            "status": status(source.status),
            "version": source.version,
            "classes": source.classes and some(source.classes),
            "size": size(source.size),
            "sha256": source.sha256,
            "job": source.job.id,
            "offered": age(source.created_at),
        }
    )
