"""Formatting of numbers, times and shares."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.reports.formatting import duration, number, percent, speed, tick, uniform_format
from tests.reports.page_reader import value_of

FLOATS = st.floats(-1e307, 1e307)


@given(FLOATS)
def test_numbers_have_four_significant_digits(value):
    assert value_of(number(value)) == pytest.approx(value, rel=6e-4)


@given(st.lists(FLOATS, min_size=1, max_size=6))
def test_numbers_of_a_column_have_three_significant_digits(values):
    format_value = uniform_format(values)
    assert all(value_of(format_value(value)) == pytest.approx(value, rel=6e-3) for value in values)


def test_formats_of_numbers_times_and_shares():
    assert [number(v) for v in (0.12345, 12345, 12345.678, 0.0, 100.0, math.nan, 1e-7, True, "x", -0.5)] == [
        *("0.1235", "12,345", "12,346", "0", "100", "NaN", "1.000e-07", "True", "x", "-0.5")
    ]
    assert [uniform_format([23.4, 0.12])(v) for v in (23.4, 0.12, 0.0)] == ["23.400", "0.120", "0.000"]
    assert [duration(v) for v in (0.0123, 5, 65, 7265)] == ["12 ms", "5.0 s", "1 min 05 s", "2 h 01 min"]
    assert [percent(v) for v in (0, 0.012, 0.5, 1)] == ["0%", "1.2%", "50%", "100%"]
    assert [tick(v) for v in (0.0, 0.5, 2000, 20000, 3e6, 1e-5)] == ["0", "0.5", "2000", "20k", "3M", "1e-05"]
    assert [speed(v) for v in (1234567, 12345.6, 99.5)] == ["1.23M", "12,346", "99.5"]
