"""Reports as they are kept: read again by this release and by later ones, and of earlier ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from grasp_core.report import (
    AS_IT_WAS,
    Difference,
    Differences,
    Figures,
    FoldReport,
    Runner,
    Standing,
    Worth,
)
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


def runners(**standings: Standing) -> tuple[Runner, ...]:
    return tuple(Runner(name=name, outcome=outcome) for name, outcome in standings.items())


def worth(points: float, error: float | None = 0.007) -> Worth:
    gain = Differences(accuracy=Difference(mean=points, error=error), log_likelihood=None)
    return Worth(effectiveness=0.1, informativeness=1.1, val=None, test=gain)


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        (
            Figures(
                candidates=runners(keep="lost", source="lost", mean="won", grasp="out"),
                worth=worth(0.018),
            ),
            "+1.8 points on test over doing without it (0.4 to 3.2); mean won over keep, source",
        ),
        (
            Figures(candidates=runners(keep="lost", source="won"), worth=worth(-0.01, None)),
            "-1.0 points on test over doing without it; source won over keep",
        ),
        (Figures(candidates=runners(source="won", mean="lost")), "source won over mean"),
        (
            Figures(candidates=runners(keep="won", source="lost"), worth=worth(0.0)),
            "keep won over source",
        ),
        (Figures(candidates=runners(keep="lost", source="lost"), worth=worth(0.0)), AS_IT_WAS),
        (Figures(candidates=runners(grasp="won")), None),
        (Figures(), None),  # of an older release
    ],
)
def test_a_sentence_says_what_a_source_was_worth(figures: Figures, sentence: str | None) -> None:
    assert figures.sentence == sentence


def test_who_merged_to_the_same_was_not_beaten() -> None:
    twins = Figures(
        candidates=(
            Runner(name="source", outcome="won"),
            Runner(name="mean", outcome="lost", same_as="source"),
        )
    )

    assert twins.sentence is None
