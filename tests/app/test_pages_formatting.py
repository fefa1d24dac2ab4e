"""Numbers, sizes and times in words."""

from datetime import timedelta

import pytest

from app.pages.formatting import (
    ago,
    change,
    count,
    decimal,
    duration,
    interval,
    percent,
    progress,
    rate,
    size,
)
from registry.tables import utc_now


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (percent(0.98324), "98.3 %"),
        (percent(1.0), "100.0 %"),
        (percent(None), "–"),
        (progress(0.405), "40 %"),
        (change(0.0123), "+1.2"),
        (change(-0.05), "−5.0"),
        (change(0.0004), "±0"),
        (change(None), ""),
        (decimal(-0.1234), "−0.123"),
        (decimal(0.12345, 4), "0.1235"),
        (decimal(None), "–"),
        (size(0), "0 B"),
        (size(1023), "1023 B"),
        (size(1536), "1.5 KiB"),
        (size(425_152), "415 KiB"),
        (size(3 * 2**30), "3.0 GiB"),
        (size(None), "–"),
        (duration(0.0123), "0.01 s"),
        (duration(42.4), "42 s"),
        (duration(61), "1 min 1 s"),
        (duration(3_720), "1 h 2 min"),
        (duration(None), "–"),
        (count(1, "version"), "1 version"),
        (interval((0.853, 0.961)), "85–96 %"),
        (interval(None), ""),
        (rate(0.0005), "0.0005"),
        (rate(5e-5), "5e-05"),
        (count(1200, "version"), "1,200 versions"),
        (count(2, "class", "classes"), "2 classes"),
    ],
)
def test_it_reads_well(said: str, expected: str) -> None:
    assert said.replace("\u202f", " ") == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(5, "just now"), (61, "1 minute ago"), (7_300, "2 hours ago"), (200_000, "2 days ago")],
)
def test_ages_are_told_roughly(seconds: float, expected: str) -> None:
    assert ago(utc_now() - timedelta(seconds=seconds)) == expected
