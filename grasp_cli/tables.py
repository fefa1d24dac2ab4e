"""Records as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from grasp_core.report import Figures

if TYPE_CHECKING:
    from grasp_client import Grasp, Job, Model, Source, Target, Version
    from grasp_client.protocol import Sensitivity
    from grasp_core.report import Runner

COLOURS = {
    "ready": "green",
    "succeeded": "green",
    "running": "cyan",
    "preparing": "cyan",
    "validating": "cyan",
    "rejected": "yellow",
    "cancelled": "yellow",
    "won": "green",
    "out": "yellow",
    "failed": "red",
}
UNITS = ("B", "KB", "MB", "GB", "TB")
WIDEST = 10_000  # columns
AGES = (("d", 86400), ("h", 3600), ("min", 60))


def models_table(models: Sequence[Model], targets: Mapping[str, str]) -> Rows | Text:
    rows = (
        (
            model.name,
            status(model.status),
            shown(model.version),
            _share((model.accuracy or {}).get("val")),
            _share((model.accuracy or {}).get("test")),
            model.architecture,
            targets.get(model.target, model.target),
            age(model.created_at),
        )
        for model in models
    )
    columns = ("model", "status", "version", "val", "test", "architecture", "target", "made")
    return listed(columns, rows, "no models yet: `grasp models create` makes one")


def targets_table(targets: Sequence[Target]) -> Rows | Text:
    rows = (
        (
            target.name,
            status(target.status),
            shown(target.images),
            some(target.classes),
            age(target.created_at),
        )
        for target in targets
    )
    columns = ("target", "status", "examples", "classes", "made")
    return listed(columns, rows, "no targets yet: `grasp targets create` registers one")


def sources_table(sources: Sequence[Source], models: Mapping[str, str]) -> Rows | Text:
    rows = (
        (
            source.name,
            models.get(source.model, source.model),
            status(source.status),
            shown(source.version),
            size(source.size),
            age(source.created_at),
            shown(source.id),
        )
        for source in sources
    )
    columns = ("source", "model", "status", "version", "size", "offered", "id")
    return listed(columns, rows, "no sources yet: `grasp push` offers one")


def jobs_table(jobs: Sequence[Job], names: Mapping[str, str]) -> Rows | Text:
    rows = (
        (
            job.id,
            job.kind,
            names.get(job.model or job.target or "", "-"),
            status(job.status),
            "-" if job.ended or job.stage is None else f"{job.stage} {job.progress:.0%}",
            shown(job.version),
            age(job.created_at),
        )
        for job in jobs
    )
    columns = ("job", "kind", "of", "status", "stage", "version", "made")
    return listed(columns, rows, "no jobs")


def versions_table(
    versions: Sequence[Version], best: int | None, sources: Mapping[str | None, str]
) -> Rows | Text:
    """`sources` are their names, by id."""
    rows = (
        (
            shown(version.number),
            accuracy(version.metrics, "val", spread=True),
            accuracy(version.metrics, "test", spread=True),
            _gained(version),
            "best" if version.number == best else "",
            *_origin(version, sources),
            size(version.size) if version.available else "deleted",
            version.sha256[:12],
            age(version.created_at),
        )
        for version in versions
    )
    origin = ("source", "method", "from it", "worth on test")
    columns = ("version", "val", "test", "change", "", *origin, "size", "sha256", "made")
    return listed(columns, rows, "no versions yet: the first source that is folded makes one")


def _origin(version: Version, sources: Mapping[str | None, str]) -> tuple[str, ...]:
    """What came in with it, how, how much of it was taken, and what that was worth."""
    if version.rollback_of:
        return f"rollback to {version.rollback_of}", "-", "-", "-"
    figures = Figures.read(version.metrics)
    share, test = figures.transferred_share, figures.worth and figures.worth.test
    return (
        sources.get(version.source, "-"),
        "weights kept" if version.kept else shown(version.method),
        "-" if share is None else f"{share:.0%}",
        test.accuracy.in_points() if test and test.accuracy else "-",
    )


def _gained(version: Version) -> str:
    """Points of validation accuracy, over the version before."""
    figures = Figures.read(version.metrics)
    if version.rollback_of or figures.before is None or figures.after is None:
        return "-"
    return f"{100 * (figures.after.val.accuracy - figures.before.val.accuracy):+.1f}"


def comparison_table(one: Mapping[str, object], other: Mapping[str, object]) -> Rows | Text:
    """Two things beside each other; where they differ, a mark."""
    names = list(dict.fromkeys((*one, *other)))
    pairs = {name: (shown(one.get(name)), shown(other.get(name))) for name in names}
    rows = ((name, a, b, "" if a == b else "≠") for name, (a, b) in pairs.items())
    return listed(("", "A", "B", ""), rows, "nothing to compare")


def candidates_table(candidates: Sequence[Runner]) -> Rows | Text:
    """What ran against each other: on validation, and on test where somebody looked."""
    rows = (
        (
            each.name,
            status(each.outcome),
            _likelihood(each),
            _share(each.accuracy),
            gain.in_points() if each.gain and (gain := each.gain.accuracy) else "-",
            _share(each.test_accuracy),
            "-" if each.seconds is None else f"{each.seconds:.1f} s",
            "-" if each.peak_bytes is None else size(each.peak_bytes),
            f"as {each.same_as}" if each.same_as else each.reason or "",
        )
        for each in candidates
    )
    measured = ("log-likelihood", "val", "over keep", "test", "time", "memory")
    return listed(("candidate", "outcome", *measured, ""), rows, "no candidates")


def _likelihood(candidate: Runner) -> str:
    if candidate.log_likelihood is None:
        return "-"
    error = "" if candidate.error is None else f" ± {candidate.error:.3f}"
    return f"{candidate.log_likelihood:.4f}{error}"


def _share(accuracy: float | None) -> str:
    return "-" if accuracy is None else f"{accuracy:.4f}"


def provenance_table(provenance: Mapping[str, Any]) -> Rows | Text:
    rows = (
        (
            shown(source["name"]),
            f"{source['share']:.1%}",
            source["sha256"][:12],
            shown(source["source"]),
        )
        for source in provenance["sources"]
    )
    return listed(("source", "share", "sha256", "id"), rows, "nothing is known")


def listed(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], empty: str) -> Rows | Text:
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return Rows(table) if table.row_count else Text(empty)


@dataclass(frozen=True)
class Rows:
    """A table of which nothing is cut off, as ids are there to be copied.

    Where it is too wide, columns move together; and then the terminal breaks its lines.
    """

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        table, whole = self.table, options.update(max_width=WIDEST)
        if console.measure(table, options=whole).maximum > options.max_width:
            table.padding, table.show_edge = 0, False
        table.width = console.measure(table, options=whole).maximum
        yield table


def details(fields: Mapping[str, Any]) -> Table:
    """One thing: a line for each of its fields that has a value."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields.items():
        if value is not None:
            table.add_row(name, value if isinstance(value, Text | Table) else str(value))
    return table


def status(word: str) -> Text:
    return Text(word, COLOURS.get(word, ""))


def shown(value: object) -> str:
    return "-" if value is None else str(value)


def some(names: Sequence[str] | None, most: int = 6) -> str:
    """The first few of them."""
    if names is None:
        return "-"
    more = f", … ({len(names)})" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def accuracy(
    metrics: Mapping[str, Any] | None, split: str, moment: str = "after", *, spread: bool = False
) -> str:
    """Before or after a fold, or of the source, as far as it was measured; with `spread`, also
    where it may lie at 95 %."""
    measured = ((metrics or {}).get(moment) or {}).get(split, {})
    value, interval = measured.get("accuracy"), measured.get("interval")
    if value is None:
        return "-"
    if not spread or interval is None:
        return f"{value:.4f}"
    low, high = interval
    return f"{value:.4f} ({low:.2f}-{high:.2f})"


def change(metrics: Mapping[str, Any] | None, split: str) -> str:
    """The accuracy before and after a fold; a first source has no before."""
    before, after = (accuracy(metrics, split, moment) for moment in ("before", "after"))
    return after if before == "-" else f"{before} → {after}"


def sight(found: Sensitivity) -> str:
    """What a gate can see of a target."""

    def points(share: float | None) -> str:
        return "none" if share is None else f"from {100 * share:.1f} points on"

    return (
        f"of {found.count} validation examples it sees a fall {points(found.overall)}, of one class"
        f" {points(found.one_class)}"
    )


def size(count: float | None) -> str:
    if count is None:
        return "-"
    for unit in UNITS[:-1]:
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} {UNITS[-1]}"


def age(moment: datetime) -> str:
    seconds = max(0, (datetime.now(UTC) - moment).total_seconds())
    for unit, length in AGES:
        if seconds >= length:
            return f"{seconds // length:.0f} {unit} ago"
    return "just now"


def names_of_all(grasp: Grasp) -> dict[str, str]:
    """Of models and targets, by id."""
    models = {model.id: model.name for model in grasp.models.list()}
    return models | {target.id: target.name for target in grasp.targets.list()}
