"""`grasp models`, and what is done with them every day: `grasp pull` and `grasp rollback`"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grasp_cli.arguments import (
    ClassNames,
    ImageSize,
    Limit,
    ModelName,
    Preprocess,
    Seed,
    Settings,
    Wait,
    Yes,
    complete_target,
    confirm,
    parse_classes,
    parse_settings,
)
from grasp_cli.session import Session, group, online
from grasp_core.kinds import DEFAULT
from grasp_core.parameters import find_changes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from grasp_client import Model
    from grasp_client.protocol import LearningRate

models = group("Models: one lineage of merged versions each.")

Number = Annotated[int | None, typer.Option("--version", min=1, help="This one, not the newest.")]
KeepVersions = Annotated[
    int | None, typer.Option(min=0, help="Keep the weights of so many versions; 0: of all.")
]
KeepSources = Annotated[
    bool | None,
    typer.Option("--keep-sources/--drop-sources", help="Whether to keep what was folded."),
]
Queue = Annotated[str | None, typer.Option(help="Which workers fold it: gpu, cpu or any.")]


@models.command("list")
@online
def list_models(
    session: Session,
    target: Annotated[str | None, typer.Option(help="Only of this target.")] = None,
    architecture: Annotated[str | None, typer.Option(help="Only of this one.")] = None,
    status: Annotated[str | None, typer.Option(help="preparing, ready or failed.")] = None,
    limit: Limit = 50,
) -> None:
    """List models, newest first."""
    from grasp_cli.tables import models_table

    found = session.grasp.models.list(
        target=target, architecture=architecture, status=status, limit=limit
    )
    if session.as_json:  # as `show` has it
        found = [session.grasp.models.get(model.id) for model in found]
    session.print_result(
        found,
        lambda: models_table(found, {it.id: it.name for it in session.grasp.targets.list()}),
    )


@models.command("create")
@online
def create_model(
    session: Session,
    name: Annotated[str, typer.Argument(help="What to call it.")],
    architecture: Annotated[
        str,
        typer.Option("--architecture", "-a", help="One that the target's kind knows by this name."),
    ],
    target: Annotated[
        str,
        typer.Option(
            "--target", "-t", help="Name or id of a target.", autocompletion=complete_target
        ),
    ],
    classes: ClassNames = None,
    image_size: ImageSize = None,
    preprocess: Preprocess = [],  # noqa: B006 - typer copies it
    weights: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Safetensors to begin from: the first source, folded before any other.",
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            help="What the sources were fine-tuned from, which some methods need: safetensors,"
            " where the server finds them, or `initial` for the weights to begin from.",
            metavar="FILE|URI|initial",
        ),
    ] = None,
    seed: Seed = None,
    settings: Settings = [],  # noqa: B006
    keep_versions: KeepVersions = None,
    keep_sources: KeepSources = None,
    queue: Queue = None,
    wait: Wait = False,
) -> None:
    """Create a model; a job prepares it."""
    from grasp_cli.progress import transfer_bar, watch_jobs

    with transfer_bar(session, name) as progress:
        made = session.grasp.models.create(
            name,
            architecture=architecture,
            target=target,
            classes=parse_classes(classes),
            image_size=image_size,
            preprocessing=parse_settings(preprocess, option="--preprocess") or None,
            merge=parse_settings(settings) or None,
            weights=weights,
            base=base,
            progress=progress,
            seed=seed,
            **_options(keep_versions, keep_sources, queue),
        )
    if not wait:
        session.print_line(made, f"{made.name}: {made.status}, {made.job.id}")
        return
    first = session.grasp.sources.list(model=made.id) if weights else []
    watch_jobs(session, {made.job.id: name} | {each.job.id: each.name for each in first})


@models.command("update")
@online
def update_model(
    session: Session,
    model: ModelName,
    name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    settings: Settings = [],  # noqa: B006
    keep_versions: KeepVersions = None,
    keep_sources: KeepSources = None,
    queue: Queue = None,
) -> None:
    """Change parameters for later folds; what is not given stays."""
    changes = _options(keep_versions, keep_sources, queue)
    if name is not None:
        changes["name"] = name
    if settings:
        changes["merge"] = parse_settings(settings)
    if not changes:
        raise typer.BadParameter("nothing to change was given")
    changed = session.grasp.models.update(model, **changes)
    session.print_result(changed, lambda: _details(session, changed))


def _options(
    keep_versions: int | None, keep_sources: bool | None, queue: str | None
) -> dict[str, Any]:
    """Those that were given; for the server, no limit and no choice are null."""
    given = {
        "keep_versions": keep_versions,
        "keep_sources": keep_sources,
        "queue": queue,
    }
    nulls = {"keep_versions": 0, "queue": "any"}
    return {
        key: None if value == nulls.get(key) else value
        for key, value in given.items()
        if value is not None
    }


@models.command("show")
@online
def show_model(session: Session, model: ModelName) -> None:
    """A model's state, and how its newest version is."""
    found = session.grasp.models.get(model)
    session.print_result(found, lambda: _details(session, found))


def _details(session: Session, model: Model) -> Table:
    from grasp_cli.tables import accuracy, age, details, sight, size, some, status

    sources = [f"{count} {word}" for word, count in (model.sources or {}).items()]
    return details(
        {
            "model": model.name,
            "id": model.id,
            "status": status(model.status),
            "error": model.error and model.error.message,
            "held": model.held and model.held.message,
            "architecture": model.architecture,
            "kind": model.kind,
            "classes": model.classes and some(model.classes),
            "preprocessing": _chosen(model.preprocessing),
            "target": session.grasp.targets.get(model.target).name,
            "base": model.base and f"{size(model.base.size)}, sha256 {model.base.sha256}",
            "sources": ", ".join(sources) or "none yet",
            "version": model.version,
            "best version": model.best if model.best != model.version else None,
            "accuracy": model.metrics
            and f"{accuracy(model.metrics, 'val', spread=True)} val,"
            f" {accuracy(model.metrics, 'test', spread=True)} test",
            "gate": model.sensitivity and sight(model.sensitivity),
            "size": model.size and size(model.size),
            "sha256": model.sha256,
            "learning rate": model.learning_rate and _describe(model.learning_rate),
            "merge": _changed(model),
            "made": age(model.created_at),
        }
    )


def _describe(found: LearningRate) -> str:
    """It, and what was tried for it."""
    tried = [f"{each.rate:g} ({each.val_accuracy:.1%})" for each in found.probe]
    return (
        f"{found.rate:g}, by validation log-likelihood the best of those that version"
        f" {found.version} tried (accuracy): {', '.join(tried)}"
    )


def _changed(model: Model) -> str:
    """Its merge parameters, as far as they are not the default."""
    changed = find_changes(model.merge, model.kind or DEFAULT)
    return ", ".join(f"{name} {value}" for name, value in changed.items()) or "as by default"


def _chosen(preprocessing: Mapping[str, Any]) -> str | None:
    """What is not left as the architecture has it."""
    return ", ".join(f"{name} {value}" for name, value in preprocessing.items() if value) or None


@models.command("delete")
@online
def delete_model(session: Session, model: ModelName, yes: Yes = False) -> None:
    """Delete a model with its versions, sources and jobs. There is no way back."""
    confirm(f"Delete model {model} with all its versions?", yes)
    session.grasp.models.delete(model)
    session.print_line({"deleted": model}, f"{model} is deleted")


@models.command("versions")
@online
def list_versions(session: Session, model: ModelName, limit: Limit = 50) -> None:
    """List a model's versions, newest first."""
    from grasp_cli.tables import versions_table

    found = session.grasp.models.versions(model, limit=limit)

    def show() -> RenderableType:
        names = {source.id: source.name for source in session.grasp.sources.list(model=model)}
        return versions_table(found, session.grasp.models.get(model).best, names)

    session.print_result(found, show)


@models.command("compare")
@online
def compare_models(
    session: Session,
    one: Annotated[str, typer.Argument(help="A model, or a version of it: faces@3.")],
    other: Annotated[str, typer.Argument(help="Another, or another version of it.")],
) -> None:
    """Show two models or versions beside each other: how good, how made, with what parameters."""
    from grasp_cli.tables import comparison_table

    pair = [_describe_version(session, words) for words in (one, other)]
    session.print_result(pair, lambda: comparison_table(*pair))


def _describe_version(session: Session, words: str) -> dict[str, Any]:
    from grasp_cli.tables import accuracy, size

    name, _, number = words.partition("@")
    model = session.grasp.models.get(name)
    facts: dict[str, Any] = {
        "model": model.name,
        "architecture": model.architecture,
        "target": session.grasp.targets.get(model.target).name,
    }
    wanted = number or str(model.version)
    found = session.grasp.models.versions(model.id)
    version = next((each for each in found if str(each.number) == wanted), None)
    if number and version is None:
        raise typer.BadParameter(f"{model.name} has no version {number}", param_hint=words)
    if version is not None:
        source = session.grasp.sources.get(version.source).name if version.source else None
        facts |= {
            "version": version.number,
            "val": accuracy(version.metrics, "val", spread=True),
            "test": accuracy(version.metrics, "test", spread=True),
            "source": source,
            "method": version.method,
            "worth": version.summary,
            "size": size(version.size),
            "sha256": version.sha256,
        }
    return facts | find_changes(model.merge, model.kind or DEFAULT)


@models.command("report")
@online
def show_report(session: Session, model: ModelName, number: Number = None) -> None:
    """Print everything that the fold behind a version measured: JSON."""
    session.print_json(session.grasp.models.report(model, number), indent=2)


@models.command("provenance")
@online
def show_provenance(session: Session, model: ModelName, number: Number = None) -> None:
    """Which source a version's parameters came from."""
    from grasp_cli.tables import provenance_table

    found = session.grasp.models.provenance(model, number)
    session.print_result(found, lambda: provenance_table(found))


@online
def pull(
    session: Session,
    model: ModelName,
    to: Annotated[
        str | None,
        typer.Argument(help="A file, or a folder; without, the current folder.", metavar="TO"),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(
            help="This one, not the newest; or best, by validation log-likelihood.",
            metavar="NUMBER|best",
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(help="Not the weights but this of its files, such as state/mean or base."),
    ] = None,
    list_files: Annotated[
        bool, typer.Option("--list-files", help="Only say which files there are.")
    ] = False,
    export: Annotated[
        bool,
        typer.Option(
            "--export",
            "--timm",
            help="A folder that the architecture's own library loads, with a model card.",
        ),
    ] = False,
) -> None:
    """Download a model's weights: verified, and there whole or not at all."""
    from grasp_client.files import sha256_of

    found = session.grasp.models.get(model)
    number = _number(found, version)
    if list_files:
        _list_files(session, found, number)
        return
    if export and file:
        raise typer.BadParameter("--export is of weights, and takes no --file")
    if export:
        folder = Path(to or f"{found.name}-v{number}")
        _export(session, found, number, folder)
        path = folder / "model.safetensors"
    else:
        path = _pull(session, found, number, to or ".", file)
    result = {
        "model": found.name,
        "version": number,
        "file": file or "weights",
        "path": str(path),
        "size": path.stat().st_size,
        "sha256": sha256_of(path),
    }
    session.print_line(result, str(path.parent if export else path))


def _number(model: Model, version: str | None) -> int | None:
    if version is None:
        return model.version
    if version == "best":
        return model.best or model.version
    if not version.isdecimal() or int(version) < 1:
        raise typer.BadParameter("a version is a number from 1 on, or best")
    return int(version)


def _pull(
    session: Session, model: Model, number: int | None, to: str, file: str | None = None
) -> Path:
    from grasp_cli.progress import transfer_bar

    with transfer_bar(session, file or f"{model.name} v{number}") as progress:
        return session.grasp.models.pull(model.id, to, version=number, file=file, progress=progress)


def _list_files(session: Session, model: Model, number: int | None) -> None:
    from grasp_cli.tables import listed, size

    files = session.grasp.models.files(model.id, version=number)
    rows = [(file.name, size(file.size), file.sha256) for file in files]
    session.print_result(
        [file.model_dump(exclude={"links"}) for file in files],
        lambda: listed(("file", "size", "sha256"), rows, "no files beside the weights"),
    )


def _export(session: Session, model: Model, number: int | None, folder: Path) -> None:
    from grasp_cli.local import export_folder

    with TemporaryDirectory() as temporary:
        weights = _pull(session, model, number, temporary)
        report = session.grasp.models.report(model.id, number)
        export_folder(weights, folder, model.name, report)


@online
def rollback(
    session: Session,
    model: ModelName,
    version: Annotated[int, typer.Argument(min=1, help="The version to go back to.")],
) -> None:
    """Go back: a new version that equals an older one."""
    made = session.grasp.models.rollback(model, version)
    session.print_line(made, f"{model}: version {made.number} equals version {version}")
