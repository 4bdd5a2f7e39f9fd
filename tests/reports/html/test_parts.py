"""The parts that pages are made of: scales, formatted numbers, downsampled curves."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from compss_train.reports.curves import Curve, Panel
from compss_train.reports.html.downsampling import MAX_CURVES, MAX_POINTS, downsample, every_nth, limit_curves
from compss_train.reports.html.formatting import duration, number, percent, speed, tick, uniform_format
from compss_train.reports.html.scales import LARGEST, exact_scale, padded_scale
from tests.reports.html.page_reader import value_of

FLOATS = st.floats(-1e307, 1e307)


@given(st.lists(FLOATS | st.sampled_from([math.nan, math.inf]), max_size=5), st.booleans())
def test_scales_contain_all_finite_values(values, from_zero):
    scale = padded_scale(values, 0.0, 100.0, from_zero=from_zero)
    assert all(-1e-6 <= scale(value) <= 100 + 1e-6 for value in values if abs(value) < LARGEST)
    ticks = scale.ticks()
    assert ticks == sorted(ticks)
    assert 1 <= len(ticks) <= 15
    assert all(-1e-3 <= scale(value) <= 100 + 1e-3 for value in ticks)


@given(st.lists(st.floats(1e-240, 1e299), min_size=1, max_size=5))
def test_logarithmic_scales_contain_all_values(values):
    scale = padded_scale(values, 0.0, 100.0, logarithmic=True)
    assert all(-1e-6 <= scale(value) <= 100 + 1e-6 for value in values)
    assume(max(values) >= 100 * min(values))
    assert 2 <= len(scale.ticks()) <= 9
    assert all(scale.low <= value <= scale.high for value in scale.ticks())


def test_ticks_are_round_numbers():
    assert exact_scale(0, 10, 0, 1).ticks(5) == [0, 2, 4, 6, 8, 10]
    assert padded_scale([1e-3, 2], 0, 1, logarithmic=True).ticks() == [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1]
    assert padded_scale([1e-4, 20], 0, 1, logarithmic=True).ticks() == [10.0**power for power in range(-4, 2)]
    assert exact_scale(3, 3, 0, 1)(3) == 0.5


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


@given(st.lists(FLOATS | st.just(math.nan), min_size=1, max_size=4), st.integers(1, 400))
def test_downsampled_curves_keep_their_extremes(values, times):
    ys = values * times
    curve = downsample(Curve("loss", [float(x) for x in range(len(ys))], ys))
    assert len(curve.xs) == len(curve.ys) <= MAX_POINTS + 1
    known = [y for y in ys if not math.isnan(y)]
    if known:
        kept = [y for y in curve.ys if not math.isnan(y)]
        assert (min(kept), max(kept)) == (min(known), max(known))
    assert curve.xs == sorted(curve.xs)
    assert all(str(ys[int(x)]) == str(y) for x, y in zip(curve.xs, curve.ys, strict=True))


def test_many_curves_are_summarized_by_three():
    xs = [0.0, 1.0]
    curves = [Curve(f"recall[{n}]", xs, [n, n + 10.0]) for n in range(MAX_CURVES + 2)]
    kept = Curve("val_recall[0]", xs, [1.0, 2.0])
    limited = limit_curves(Panel("recall", [*curves, kept])).curves
    assert [(curve.name, curve.ys) for curve in limited] == [
        ("recall, median", [4.5, 14.5]),
        ("recall, lowest", [0.0, 10.0]),
        ("recall, highest", [9.0, 19.0]),
        ("val_recall[0]", [1.0, 2.0]),
    ]


@given(st.integers(0, 3000), st.integers(1, 100))
def test_every_nth_item_and_the_last(count, most):
    kept, step = every_nth(list(range(count)), most)
    assert len(kept) <= most + 1
    assert kept[:-1] == list(range(0, count, step))[: len(kept) - 1]
    assert kept[-1:] == ([count - 1] if count else [])
