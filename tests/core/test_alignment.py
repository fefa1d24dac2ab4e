"""Scores and choices as pure functions, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from grasp_core.alignment import (
    PAPER_TAU,
    align,
    auto_threshold,
    blended,
    cosine,
    otsu_threshold,
)
from grasp_core.methods.grasp import Granularity

GRANULARITIES: tuple[Granularity, ...] = ("tensor", "channel", "element")
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)
MAGNITUDES = st.floats(2.0**-40, 2.0**20, width=32)  # their products are no less than float32 has
VALUES = MAGNITUDES | MAGNITUDES.map(lambda value: -value)


def tensors(count: int) -> st.SearchStrategy[list[Tensor]]:
    """Tensors of one shape, with zeros as often as not."""
    return SHAPES.flatmap(
        lambda shape: st.lists(
            hnp.arrays(np.float32, shape, elements=st.just(0.0) | VALUES).map(torch.from_numpy),
            min_size=count,
            max_size=count,
        )
    )


@given(pair=tensors(2), granularity=st.sampled_from(GRANULARITIES))
def test_scores_lie_between_minus_one_and_one(pair: list[Tensor], granularity: Granularity) -> None:
    scores = align(pair[0], pair[1], granularity)

    assert scores.min() >= -1
    assert scores.max() <= 1


@given(pair=tensors(2))
def test_scores_are_the_cosines_of_their_definition(pair: list[Tensor]) -> None:
    gk, g = (tensor.double().numpy() for tensor in pair)

    assert float(align(pair[0], pair[1], "tensor")) == pytest.approx(naive_cosine(gk, g), abs=1e-5)
    assert align(pair[0], pair[1], "channel").tolist() == pytest.approx(
        [naive_cosine(a, b) for a, b in zip(gk, g, strict=True)], abs=1e-5
    )
    assert np.array_equal(align(pair[0], pair[1], "element").numpy(), np.sign(gk) * np.sign(g))


def naive_cosine(a: np.ndarray, b: np.ndarray) -> float:
    norms = float(np.linalg.norm(a.ravel()) * np.linalg.norm(b.ravel()))
    return float(np.dot(a.ravel(), b.ravel())) / norms if norms > 0 else 0.0


@given(pair=tensors(2), granularity=st.sampled_from(GRANULARITIES), tau=st.floats(0, 1))
def test_a_zero_gradient_never_transfers(
    pair: list[Tensor], granularity: Granularity, tau: float
) -> None:
    zero = torch.zeros_like(pair[0])

    for scores in (align(zero, pair[1], granularity), align(pair[0], zero, granularity)):
        assert not (scores > tau).any()


@given(
    pair=tensors(2),
    granularity=st.sampled_from(GRANULARITIES),
    exponents=st.tuples(st.integers(-8, 8), st.integers(-8, 8)),
)
def test_scaling_a_gradient_changes_no_score(
    pair: list[Tensor], granularity: Granularity, exponents: tuple[int, int]
) -> None:
    scaled = [tensor * 2.0**exponent for tensor, exponent in zip(pair, exponents, strict=True)]

    assert torch.allclose(
        align(scaled[0], scaled[1], granularity).double(),
        align(pair[0], pair[1], granularity).double(),
        atol=1e-6,
    )


@given(gradient=tensors(1), granularity=st.sampled_from(GRANULARITIES))
def test_a_gradient_agrees_with_itself_but_not_beyond_one(
    gradient: list[Tensor], granularity: Granularity
) -> None:
    scores = align(gradient[0], gradient[0], granularity)

    assert not (scores > 1).any()
    if granularity == "tensor" and gradient[0].any():
        assert scores > 0.999999


def test_values_that_are_not_finite_never_transfer() -> None:
    good = torch.ones(2, 3)
    for bad in (torch.nan, torch.inf):
        broken = good.clone()
        broken[0, 0] = bad

        assert not align(broken, good, "tensor") > 0
        assert align(broken, good, "channel").tolist() == pytest.approx([0, 1])


def test_epsilon_is_added_to_the_denominator() -> None:
    a = torch.full((4,), 1e-4)

    assert float(cosine(a, a)) == pytest.approx(1.0)
    assert float(cosine(a, a, epsilon=4e-8)) == pytest.approx(0.5)


def test_a_parameter_without_axes_is_one_channel() -> None:
    assert align(torch.tensor(2.0), torch.tensor(3.0), "channel").shape == ()


@given(triple=tensors(2), data=st.data())
def test_with_a_hard_copy_every_element_is_the_merged_or_the_sources(
    triple: list[Tensor], data: st.DataObject
) -> None:
    merged, source = triple
    chosen = data.draw(hnp.arrays(np.bool_, merged.shape).map(torch.from_numpy))

    result = blended(merged, source, chosen, 1.0)

    assert torch.equal(result[chosen], source[chosen])
    assert torch.equal(result[~chosen], merged[~chosen])


@given(pair=tensors(2), blend=st.floats(0, 1, exclude_max=True), row=st.booleans())
def test_with_another_blend_it_is_exactly_the_combination_or_the_merged(
    pair: list[Tensor], blend: float, row: bool
) -> None:
    merged, source = pair
    chosen = torch.zeros(len(merged), dtype=torch.bool)
    chosen[0] = row

    result = blended(merged, source, chosen, blend)

    expected = merged.clone()
    if row:
        expected[0] = blend * source[0] + (1 - blend) * merged[0]
    assert torch.equal(result, expected)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=30))
def test_otsu_is_the_cut_that_parts_best(scores: list[float]) -> None:
    values = torch.tensor(scores)

    cut = otsu_threshold(values)

    best = max(separation(values.tolist(), value) for value in values.tolist())
    assert separation(values.tolist(), cut) == pytest.approx(best, rel=1e-9, abs=1e-12)


def separation(values: list[float], cut: float) -> float:
    """Variance between those above the cut and the others."""
    low, high = [v for v in values if v <= cut], [v for v in values if v > cut]
    if not low or not high:
        return 0.0
    return len(low) * len(high) * (sum(high) / len(high) - sum(low) / len(low)) ** 2


@pytest.mark.parametrize(
    ("scores", "tau"),
    [
        ([-0.5, -0.4, 0.1, 0.2], 0.0),  # never what disagrees
        ([0.0, 0.1, 0.5, 0.6], 0.1),  # the gap
        ([0.5, 0.6, 0.9, 0.95], PAPER_TAU),  # all agree well
        ([1.0, 1.0, 1.0], PAPER_TAU),
        ([0.8], 0.0),
    ],
)
def test_auto_parts_scores_between_zero_and_the_papers_threshold(
    scores: list[float], tau: float
) -> None:
    assert auto_threshold([torch.tensor(s) for s in scores]) == pytest.approx(tau)
    assert auto_threshold([torch.tensor(scores)]) == pytest.approx(tau)


def test_auto_has_nothing_to_part_in_signs() -> None:
    assert auto_threshold([]) == 0
    assert auto_threshold([torch.tensor([1, -1], dtype=torch.int8)]) == 0
