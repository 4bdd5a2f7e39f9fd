"""Compressed changes: error feedback loses nothing in sum, whatever the values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from compss_train.model.compression import compress, compress_arrays
from compss_train.worker.merging.weighted_mean import partial_sum
from tests.helpers.tolerances import merged, weighted

DTYPES = ["bf16", "int8"]
LARGEST = {np.float16: 6e4, np.float32: 1e38, np.float64: 1e38}


@st.composite
def trainings(draw, largest=1.0, least_rounds=1):
    """Draw arrays before and after each of some rounds, of one type; with zeros, denormals and huge
    values.
    """
    dtype = draw(st.sampled_from(list(LARGEST)))
    bound = dtype(draw(st.sampled_from([1e-42, 1.0, LARGEST[dtype]])) * largest)
    width = 8 * np.dtype(dtype).itemsize
    arrays = hnp.arrays(dtype, (2, 3), elements=st.floats(-float(bound), float(bound), width=width))
    return draw(st.lists(st.tuples(arrays, arrays), min_size=least_rounds, max_size=6))


def wide(array):
    return np.asarray(array, np.float64)


def decoded(change):
    return change[:].reshape(change.shape)


@pytest.mark.parametrize("dtype", DTYPES)
@given(rounds=trainings())
def test_error_feedback_loses_nothing_in_sum(dtype, rounds):
    """Σ sent + the last error = Σ changes, but for three roundings a round of sums of at most two
    changes.
    """
    sent = np.zeros((2, 3))
    error = None
    for before, after in rounds:
        change, error = compress(before, after, dtype, error=error)
        assert (change.shape, change.dtype) == (after.shape, after.dtype)
        sent += decoded(change)
    changes = [wide(after) - wide(before) for before, after in rounds]
    largest = max(np.abs(change).max() for change in changes)
    bound = (
        3 * len(rounds) * np.finfo(error.dtype).eps * 2 * largest
        + len(rounds) * np.finfo(error.dtype).tiny
    )
    np.testing.assert_allclose(sent + error, sum(changes), rtol=0, atol=bound)


@given(rounds=trainings())
def test_bf16_is_cut_towards_zero(rounds):
    for before, after in rounds:
        change, error = compress(before, after, "bf16")
        total = decoded(change) + error
        assert change.codes.dtype == np.uint16
        assert (np.abs(error) <= np.maximum(np.abs(total) / 128, 1e-40)).all()
        assert (np.sign(decoded(change)) * np.sign(total) >= 0).all()


@given(rounds=trainings())
def test_int8_is_rounded_to_the_nearest_multiple_of_the_scale(rounds):
    for before, after in rounds:
        change, error = compress(before, after, "int8")
        total = decoded(change) + error
        assert change.codes.dtype == np.int8
        if change.scale >= np.finfo(error.dtype).tiny:
            eps = np.finfo(error.dtype).eps
            assert np.abs(change.codes).max() == 127
            assert (np.abs(wide(error)) <= wide(change.scale) * (0.5 + 254 * eps)).all()
        else:
            assert not change.codes.any()
            np.testing.assert_array_equal(error, total)


positive = hnp.arrays(np.float32, 6, elements=st.floats(0, 100, width=32))
counts = st.integers(1, 2**20)


@given(
    kind=st.sampled_from([np.float16, np.float32, np.float64]),
    base=positive,
    workers=st.lists(st.tuples(positive, counts), min_size=1, max_size=4),
)
def test_means_of_positive_values_as_bf16_are_not_negative(kind, base, workers):
    start = {"v": base.astype(kind)}
    versions = [
        compress_arrays(start, {"v": array.astype(kind)}, ["v"], "bf16")[0] for array, _ in workers
    ]
    numbers = [count for _, count in workers]
    items = weighted(versions, numbers)
    for mean in (merged(items, start), merged([partial_sum(items)], start)):
        assert (mean["v"] >= 0).all()
        assert mean["v"].dtype == kind


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_visible(dtype, bad):
    array = np.ones(5, np.float32)
    change, error = compress(array, np.array([1, bad, 1, 1, 2], np.float32), dtype)
    assert not np.isfinite(decoded(change)[1])
    assert not np.isfinite(error[1])
