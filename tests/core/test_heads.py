"""Head rows are matched by class name, and by position where there are no names."""

import pytest
import torch
from torch import Tensor

from grasp_core.heads import ClassMatch, MatchedSource, match_classes

HEADS = frozenset({"fc.weight", "fc.bias"})


def head(rows: int, start: float, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """A model with a body and a head whose row r is filled with start + r."""
    values = torch.arange(rows, dtype=dtype) + start
    return {
        "body.weight": torch.full((3,), start, dtype=dtype),
        "fc.weight": values[:, None].repeat(1, 2),  # (C, 2)
        "fc.bias": values,
    }


def test_names_are_matched_whatever_their_order() -> None:
    match = match_classes(("cat", "dog", "owl"), ("owl", "cat", "dog"))

    assert match == ClassMatch(merged=(0, 1, 2), source=(1, 2, 0), count=3)
    assert not match.partial
    assert match.known() is None


@pytest.mark.parametrize("nameless", [None, ()])
def test_without_names_rows_are_matched_by_position(nameless: tuple[str, ...] | None) -> None:
    assert match_classes(("cat", "dog"), nameless) == ClassMatch((0, 1), (0, 1), 2)


def test_classes_that_only_one_side_has_are_left_out() -> None:
    match = match_classes(("cat", "dog", "owl"), ("fox", "owl", "cat"))

    assert match == ClassMatch(merged=(0, 2), source=(2, 1), count=3)
    assert match.partial
    known = match.known()
    assert known is not None
    assert known.tolist() == [True, False, True]


def test_a_source_that_knows_more_classes_is_not_partial() -> None:
    match = match_classes(("cat",), ("dog", "cat"))

    assert match == ClassMatch(merged=(0,), source=(1,), count=1)
    assert match.known() is None


def test_no_class_in_common_is_judged_on_all_classes() -> None:
    match = match_classes(("cat", "dog"), ("F", "M", "X"))

    assert match == ClassMatch(merged=(), source=(), count=2)
    assert match.partial
    assert match.known() is None


def test_rows_are_put_into_the_models_order() -> None:
    match = match_classes(("cat", "dog", "owl"), ("owl", "cat", "dog"))

    source = MatchedSource(head(3, 10.0), head(3, 0.0), HEADS, match)

    assert source["fc.bias"].tolist() == [11.0, 12.0, 10.0]
    assert source["fc.weight"].tolist() == [[11.0, 11.0], [12.0, 12.0], [10.0, 10.0]]
    assert source["body.weight"].tolist() == [10.0] * 3
    assert source.matched_rows("fc.bias") is None


def test_missing_rows_are_the_merged_models() -> None:
    merged = head(3, 0.0)
    match = match_classes(("cat", "dog", "owl"), ("fox", "owl", "cat"))

    source = MatchedSource(head(3, 10.0), merged, HEADS, match)

    assert source["fc.bias"].tolist() == [12.0, 1.0, 11.0]
    assert source.matched_rows("fc.bias") == [0, 2]
    assert source.matched_rows("body.weight") is None
    assert merged["fc.bias"].tolist() == [0.0, 1.0, 2.0]  # read, not written


def test_without_a_common_class_the_head_is_the_merged_one_and_the_body_the_sources() -> None:
    match = match_classes(("cat", "dog"), ("F", "M", "X"))

    source = MatchedSource(head(3, 10.0), head(2, 0.0), HEADS, match)

    assert source["fc.weight"].tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert source["body.weight"].tolist() == [10.0] * 3
    assert source.matched_rows("fc.weight") == []


def test_half_precision_rows_become_the_merged_precision() -> None:
    match = match_classes(("cat", "dog"), ("dog", "fox"))

    source = MatchedSource(head(2, 10.0, torch.bfloat16), head(2, 0.0), HEADS, match)

    assert source["fc.bias"].dtype == torch.float32
    assert source["fc.bias"].tolist() == [0.0, 10.0]


def test_half_precision_becomes_float32_without_a_merged_model() -> None:
    match = match_classes(("cat", "dog", "owl"), ("owl", "cat"))

    source = MatchedSource(head(2, 10.0, torch.float16), None, HEADS, match)

    assert source["fc.bias"].dtype == torch.float32
    assert source["fc.bias"].tolist() == [11.0, 0.0, 10.0]  # a class nobody knows yet starts at 0
    assert source["fc.weight"].shape == (3, 2)


def test_it_is_a_mapping_over_the_sources_tensors() -> None:
    weights = head(2, 10.0)

    source = MatchedSource(weights, None, HEADS, match_classes(("a", "b"), None))

    assert list(source) == list(weights)
    assert len(source) == 3
    assert "nothing" not in source
    with pytest.raises(KeyError, match="nothing"):
        source["nothing"]
