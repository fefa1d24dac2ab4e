"""Where a version's parameters came from: the provenance map with its legend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from app.charts import Contributor, contributors, layers, provenance_rows, share_bar
from app.charts.provenance import OTHERS, Row
from grasp_core.report import FoldReport


@dataclass(frozen=True)
class Origins:
    """The map, its legend, and a bar of the whole."""

    bar: Markup
    legend: Sequence[Contributor]
    rows: Sequence[Row]

    @property
    def names(self) -> dict[int, str]:
        return {part.slot: part.name for part in self.legend}


def origins(report: FoldReport, names: Mapping[str, str]) -> Origins | None:
    """None if the report does not tell. `names` are those of the sources, by sha256."""
    sizes = {p.name: p.size for p in report.parameters if p.name in report.provenance.shares}
    if not sizes:
        return None
    found = contributors(report.given(), names)
    legend = _legend(list(found.values()))
    slots = {key: part.slot for key, part in found.items()}
    drawn = layers(sizes, report.provenance.shares, slots)
    return Origins(
        bar=share_bar("Share of all parameters that each source gave", legend),
        legend=legend,
        rows=provenance_rows(drawn, {part.slot: part.name for part in legend}),
    )


def _legend(parts: Sequence[Contributor]) -> list[Contributor]:
    alone = [part for part in parts if part.slot != OTHERS]
    small = [part for part in parts if part.slot == OTHERS]
    if not small:
        return alone
    together = sum(part.share for part in small)
    return [*alone, Contributor(f"{len(small)} others", together, OTHERS)]
