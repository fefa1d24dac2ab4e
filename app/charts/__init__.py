"""Charts as SVG, drawn by pure functions: values in, text out."""

from app.charts.gains import gain_bar, reach
from app.charts.lines import Series, line_chart, sparkline
from app.charts.parameters import Scored, score_chart
from app.charts.provenance import (
    Contributor,
    contributors,
    layers,
    provenance_rows,
    share_bar,
)
from app.charts.svg import bar, shade

__all__ = [
    "Contributor",
    "Scored",
    "Series",
    "bar",
    "contributors",
    "gain_bar",
    "layers",
    "line_chart",
    "provenance_rows",
    "reach",
    "score_chart",
    "shade",
    "share_bar",
    "sparkline",
]
