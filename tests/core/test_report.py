"""Reports as they are kept: read again by this release and by later ones, and of earlier ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from grasp_core.report import FoldReport
from grasp_core.significance import wilson

RECORDED = Path(__file__).parents[1] / "app" / "recorded_report.json"  # of schema 1


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found


def test_a_report_of_the_first_schema_is_read() -> None:
    old = recorded()
    assert old["schema"] == 1

    report = FoldReport.model_validate_json(RECORDED.read_text())

    assert report.schema_version == 2
    assert report.method == "grasp"
    assert report.details == {"tau": old["tau"]}
    assert [p.score for p in report.parameters] == [p["alignment"] for p in old["parameters"]]
    assert [p.transferred for p in report.parameters] == [
        p["transferred"] for p in old["parameters"]
    ]
    assert json.loads(report.to_json())["metrics"] == old["metrics"] | {"source": None}
    assert report.given().keys() == {"source-0", "source-1", "source-2", "source-3"}
    assert FoldReport.model_validate_json(report.to_json()) == report


def test_the_first_source_was_compared_with_nothing() -> None:
    report = FoldReport.model_validate(recorded() | {"tau": None})

    assert report.details == {}
    assert {p.score for p in report.parameters} == {None}


def test_what_a_later_release_adds_is_passed_over() -> None:
    newer = json.loads(FoldReport.model_validate(recorded()).to_json()) | {"weather": "fine"}
    newer["metrics"]["after"]["val"]["calibration"] = 0.1
    newer["config"] |= {"method": "unheard", "of": 1}

    report = FoldReport.model_validate(newer)

    assert report.method == "unheard"
    assert report.metrics.after is not None


def test_a_report_of_an_unknown_schema_is_none() -> None:
    with pytest.raises(ValidationError, match="schema"):
        FoldReport.model_validate(recorded() | {"schema": 3})


def test_figures_are_the_part_that_versions_keep() -> None:
    old = recorded()
    figures = FoldReport.model_validate(old).figures.model_dump()
    assert figures["transferred_share"] == old["transferred_share"]
    for moment in ("before", "after"):
        for split in ("val", "test"):
            found = old["metrics"][moment][split]
            assert figures[moment][split] == {
                "accuracy": found["accuracy"],
                "per_class": found["per_class_accuracy"],
                "count": found["count"],
                "log_likelihood": found["log_likelihood"],
                "interval": wilson(found["accuracy"], found["count"]),
            }


def test_clients_find_scores_and_threshold_under_their_first_names() -> None:
    old = recorded()

    found = json.loads(FoldReport.model_validate(old).to_json())

    assert found["tau"] == old["tau"]
    assert [p["alignment"] for p in found["parameters"]] == [
        p["alignment"] for p in old["parameters"]
    ]
