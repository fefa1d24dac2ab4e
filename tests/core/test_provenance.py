"""Who gave what, over many folds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_core import Provenance


def test_whole_tensors_belong_to_the_last_source_that_gave_them() -> None:
    record = Provenance()
    for source, given_tensors in [("a", {"w": 1.0, "b": 1.0}), ("b", {"w": 1.0, "b": 0.0})]:
        record = record.after_transfer(source, given_tensors)

    assert record.shares == {"w": {"b": 1.0}, "b": {"a": 1.0}}


def test_a_part_is_taken_from_all_earlier_owners_alike() -> None:
    record = Provenance(shares={"w": {"a": 0.75, "b": 0.25}})

    assert record.after_transfer("c", {"w": 0.4}).shares == {
        "w": pytest.approx({"a": 0.45, "b": 0.15, "c": 0.4})
    }


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.floats(0, 1)), max_size=30))
def test_shares_never_exceed_the_whole(folds: list[tuple[str, float]]) -> None:
    record = Provenance().after_transfer("first", {"w": 1.0})
    for source, share in folds:
        record = record.after_transfer(source, {"w": share})

    assert sum(record.shares["w"].values()) == pytest.approx(1, abs=1e-4)
    assert all(0 < share <= 1 for share in record.shares["w"].values())


def test_a_source_that_gave_nothing_takes_no_room() -> None:
    record = Provenance().after_transfer("first", {"w": 1.0})
    for number in range(100):
        record = record.after_transfer(f"source {number}", {"w": 0.0})

    assert record.shares == {"w": {"first": 1.0}}


def test_totals_weigh_tensors_by_size() -> None:
    record = Provenance(shares={"w": {"a": 1.0}, "b": {"a": 0.5, "c": 0.5}})

    assert record.totals({"w": 30, "b": 10}) == pytest.approx({"a": 0.875, "c": 0.125})
