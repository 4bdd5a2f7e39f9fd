"""Scales of axes and their ticks."""

import math

from hypothesis import assume, given
from hypothesis import strategies as st

from compss_train.reports.curves import LARGEST
from compss_train.reports.html.scales import exact_scale, padded_scale

FLOATS = st.floats(-1e307, 1e307)


@given(st.lists(FLOATS | st.sampled_from([math.nan, math.inf]), max_size=5), st.booleans())
def test_scales_contain_all_finite_values(values, from_zero):
    scale = padded_scale(values, 0.0, 100.0, from_zero=from_zero)
    assert all(-1e-6 <= scale(value) <= 100 + 1e-6 for value in values if abs(value) < LARGEST)
    ticks = scale.ticks()
    assert ticks == sorted(ticks)
    assert 1 <= len(ticks) <= 15
    assert all(-1e-3 <= scale(value) <= 100 + 1e-3 for value in ticks)


@given(st.lists(st.floats(1e-240, 1e149), min_size=1, max_size=5))
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
