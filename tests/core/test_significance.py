"""Tails of the binomial distribution against scipy's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from grasp_core import significance
from grasp_core.report import PairedCounts
from grasp_core.significance import (
    lower_tail,
    paired_p_value,
    smallest_refused,
    upper_tail,
    wilson,
)

COUNTS = st.integers(0, 3000)
CHANCES = st.floats(0.001, 0.999)


@given(count=COUNTS, k=st.integers(-2, 3002), chance=CHANCES)
def test_tails_are_scipys(count: int, k: int, chance: float) -> None:
    law = stats.binom(count, chance)

    assert upper_tail(count, k, chance) == pytest.approx(law.sf(k - 1), rel=1e-8, abs=1e-12)
    assert lower_tail(count, k, chance) == pytest.approx(law.cdf(k), rel=1e-8, abs=1e-12)


@given(lost=st.integers(0, 400), gained=st.integers(0, 400))
def test_the_paired_test_is_the_exact_sign_test(lost: int, gained: int) -> None:
    if lost + gained:
        expected = stats.binomtest(lost, lost + gained, alternative="greater").pvalue
        assert paired_p_value(lost, gained) == pytest.approx(expected, rel=1e-9)
    else:
        assert paired_p_value(lost, gained) == 1.0


def test_a_million_examples_are_no_trouble() -> None:
    assert upper_tail(10**6, 502_000) == pytest.approx(stats.binom(10**6, 0.5).sf(501_999))
    assert upper_tail(10**6, 1) == 1.0


@given(right=st.integers(0, 400), wrong=st.integers(0, 400))
def test_the_interval_is_wilsons(right: int, wrong: int) -> None:
    if count := right + wrong:
        expected = stats.binomtest(right, count).proportion_ci(0.95, method="wilson")
        assert wilson(right / count, count) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("count", "limit", "tries", "expected"),
    [(100, 0.02, 1, 5), (100, 0.08, 1, 9), (10, 0.02, 10, 8), (6, 0.02, 1, 5), (4, 0.0, 1, None)],
)
def test_the_smallest_drop_that_is_refused(
    count: int, limit: float, tries: int, expected: int | None
) -> None:
    assert smallest_refused(count, limit, 0.05, tries) == expected
    for lost in range(1, count + 1):
        refused = lost / count > limit and tries * 0.5**lost <= 0.05
        assert refused == (expected is not None and lost >= expected)


@pytest.mark.parametrize("limit", [0.0, 0.02, 0.5, 1.0])
def test_it_is_found_at_once_of_however_many_examples(
    limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages and answers ask for it, of every class."""
    asked: list[int] = []

    def count_calls(lost: int, gained: int) -> float:
        asked.append(lost)
        return float(0.5**lost)

    monkeypatch.setattr(significance, "paired_p_value", count_calls)
    count = 10**12

    found = smallest_refused(count, limit, 0.05, tries=1000)

    assert found == (None if limit == 1 else max(15, round(limit * count) + 1))
    assert len(asked) < 100


@pytest.mark.parametrize(
    ("lost", "gained", "trend"),
    [(0, 0, "same"), (4, 0, "same"), (5, 0, "down"), (0, 5, "up"), (20, 25, "same")],
)
def test_a_change_has_a_direction_where_chance_does_not_explain_it(
    lost: int, gained: int, trend: str
) -> None:
    assert PairedCounts(count=50, lost=lost, gained=gained).trend == trend
