"""Tails of the binomial distribution against scipy's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from grasp_core.significance import lower_tail, paired_p_value, upper_tail

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
