"""Downsampling of curves and tables."""

import math

from hypothesis import given
from hypothesis import strategies as st

from compss_train.reports.curves import LARGEST, Curve, Panel
from compss_train.reports.html.downsampling import MAX_CURVES, MAX_POINTS, downsample, every_nth, limit_curves

FLOATS = st.floats(-1e307, 1e307)


@given(st.lists(FLOATS | st.just(math.nan), min_size=1, max_size=4), st.integers(1, 400))
def test_downsampled_curves_keep_their_extremes(values, times):
    ys = values * times
    curve = downsample(Curve("loss", [float(x) for x in range(len(ys))], ys))
    assert len(curve.xs) == len(curve.ys) <= MAX_POINTS + 1
    known = [y for y in ys if abs(y) < LARGEST]
    if known:
        kept = [y for y in curve.ys if abs(y) < LARGEST]
        assert (min(kept), max(kept)) == (min(known), max(known))
    assert curve.xs == sorted(curve.xs)
    assert all(str(ys[int(x)]) == str(y) for x, y in zip(curve.xs, curve.ys, strict=True))


def test_values_that_cannot_be_drawn_do_not_stand_for_those_that_can():
    ys = [math.inf, 1.0, math.nan, 2.0] * MAX_POINTS
    curve = downsample(Curve("loss", [float(x) for x in range(len(ys))], ys))
    assert set(curve.ys) == {1.0, 2.0}


def test_many_curves_are_summarized_by_a_band():
    xs = [0.0, 1.0]
    curves = [Curve(f"recall[{n}]", xs, [n, n + 10.0]) for n in range(MAX_CURVES + 2)]
    kept = Curve("val_recall[0]", xs, [1.0, 2.0])
    limited = limit_curves(Panel("recall", [*curves, kept])).curves
    assert [(curve.name, curve.ys, curve.band) for curve in limited] == [
        ("recall, median", [4.5, 14.5], ([0.0, 10.0], [9.0, 19.0])),
        ("val_recall[0]", [1.0, 2.0], None),
    ]


@given(st.integers(0, 3000), st.integers(1, 100))
def test_every_nth_item_and_the_last(count, most):
    kept, step = every_nth(list(range(count)), most)
    assert len(kept) <= most + 1
    assert kept[:-1] == list(range(0, count, step))[: len(kept) - 1]
    assert kept[-1:] == ([count - 1] if count else [])
