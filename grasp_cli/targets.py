"""`grasp targets`"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from grasp_cli.arguments import Limit, TargetName, Wait, Yes, confirm
from grasp_cli.session import Session, group, online

if TYPE_CHECKING:
    from rich.table import Table

    from grasp_client import Target

targets = group("Labelled data of the domain you care about.")


@targets.command("list")
@online
def list_targets(
    session: Session,
    status: Annotated[str | None, typer.Option(help="validating, ready or failed.")] = None,
    limit: Limit = 50,
) -> None:
    """List targets, newest first."""
    from grasp_cli.tables import targets_table

    found = session.grasp.targets.list(status=status, limit=limit)
    session.print_result(found, lambda: targets_table(found))


@targets.command("create")
@online
def create_target(
    session: Session,
    name: Annotated[str, typer.Argument(help="What to call it.")],
    data: Annotated[
        str,
        typer.Argument(
            help="A file or folder, which is sent, in a format that its kind has. Or a uri that the"
            " server may read."
        ),
    ],
    kind: Annotated[
        str | None, typer.Option(help="The kind of problem, if not the server's usual one.")
    ] = None,
    wait: Wait = False,
) -> None:
    """Register target data; a job validates it."""
    from grasp_cli.progress import upload_bar, watch_jobs

    with upload_bar(session, name) as progress:
        made = session.grasp.targets.create(name, data, kind=kind, progress=progress)
    if wait:
        watch_jobs(session, {made.job.id: name})
    else:
        session.print_line(made, f"{made.name}: {made.status}, {made.job.id}")


@targets.command("show")
@online
def show_target(session: Session, target: TargetName) -> None:
    """A target's classes, and its examples per split and class."""
    found = session.grasp.targets.get(target)
    session.print_result(found, lambda: _details(found))


def _details(target: Target) -> Table:
    from grasp_cli.tables import age, details, sight, size, some, status

    return details(
        {
            "target": target.name,
            "id": target.id,
            "kind": target.kind,
            "status": status(target.status),
            "error": target.error and target.error.message,
            "uri": target.uri,
            "size": target.size and size(target.size),
            "examples": target.images,
            "broken": target.broken_count or None,
            "classes": target.classes and some(target.classes),
            **{split: _counted(counts) for split, counts in (target.counts or {}).items()},
            "gate": target.sensitivity and sight(target.sensitivity),
            "warning": "; ".join(target.warnings) or None,
            "fingerprint": target.fingerprint,
            "job": target.job.id,
            "made": age(target.created_at),
        }
    )


def _counted(counts: Mapping[str, int]) -> str:
    from grasp_cli.tables import some

    return f"{sum(counts.values())}: {some([f'{count} {name}' for name, count in counts.items()])}"


@targets.command("delete")
@online
def delete_target(session: Session, target: TargetName, yes: Yes = False) -> None:
    """Remove a target that no model uses."""
    confirm(f"Delete target {target}?", yes)
    session.grasp.targets.delete(target)
    session.print_line({"deleted": target}, f"{target} is deleted")
