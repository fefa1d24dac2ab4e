"""Charts as SVG, drawn by pure functions: values in, text out."""

from app.charts.alignment import Aligned, alignment_chart
from app.charts.bars import bar, shade
from app.charts.lines import Series, line_chart, sparkline
from app.charts.provenance import (
    Contributor,
    contributors,
    layers,
    provenance_rows,
    share_bar,
)

__all__ = [
    "Aligned",
    "Contributor",
    "Series",
    "alignment_chart",
    "bar",
    "contributors",
    "layers",
    "line_chart",
    "provenance_rows",
    "shade",
    "share_bar",
    "sparkline",
]
