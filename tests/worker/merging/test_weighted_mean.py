"""Weighted means: of which samples, and the same bits whoever adds up what."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from compss_train.engines.packing import aligned_ranges
from compss_train.worker.merging.weighted_mean import mean, partial_sum
from tests.helpers.models import assert_same_bits
from tests.helpers.tolerances import average, merged, sum_error, weighted

LARGEST = 1e6
floats = hnp.arrays(np.float32, (3, 2), elements=st.floats(-LARGEST, LARGEST, width=32))
counts = st.integers(1, 2**28)


def version(array):
    return {"w": array, "steps": np.array(int(abs(array.sum())) % 100), "on": array[0] > 0}


def assert_means(ours, theirs):
    """Up to 8 versions are weighted and summed in double precision, in any order, and rounded
    once.
    """
    rounding = np.finfo(np.float32).eps
    np.testing.assert_allclose(
        ours, theirs, rtol=rounding, atol=sum_error(np.float64, 8, 2 * LARGEST)
    )


def of_ranges(items, ranges):
    """Return the mean of sums, each of a range of items."""
    sums = [
        partial_sum(inside) for each in ranges if (inside := [i for i in items if i.first in each])
    ]
    return merged(sums)


@given(array=floats, count=counts)
def test_the_mean_of_one_version_is_that_version(array, count):
    (one,) = weighted([version(array)], [count])
    assert mean([one], {})["parameters"] is one.parameters
    assert mean([partial_sum([one])], {})["parameters"] is one.parameters


@given(arrays=st.lists(floats, min_size=2, max_size=6), data=st.data())
def test_the_mean_is_weighted_by_samples(arrays, data):
    numbers = data.draw(st.lists(counts, min_size=len(arrays), max_size=len(arrays)))
    result = average([version(a) for a in arrays], numbers)
    expected = np.average(np.stack(arrays).astype(np.float64), axis=0, weights=numbers)
    assert_means(result["w"], expected)
    assert result["w"].dtype == np.float32
    assert result["steps"] == max(version(a)["steps"] for a in arrays)
    np.testing.assert_array_equal(result["on"], np.any([a[0] > 0 for a in arrays], axis=0))


@given(
    workers=st.lists(st.tuples(st.just(0) | counts, st.booleans()), min_size=1, max_size=40),
    slots=st.integers(1, 9),
    seed=st.integers(0, 2**32),
)
def test_who_adds_up_does_not_matter(workers, slots, seed):
    """Some workers are absent, some have no samples, and some lack a name."""
    random = np.random.default_rng(seed)
    versions = [version(random.normal(size=(3, 2)).astype(np.float32)) for _ in workers]
    for one in versions[::3]:
        del one["on"]
    items = weighted(versions, [count for count, _ in workers])
    items = [item for item, (_, is_there) in zip(items, workers, strict=True) if is_there] or items[
        :1
    ]
    expected = merged(items)
    ranges = aligned_ranges(len(workers), slots)
    tree = [range(start, start + 8) for start in range(0, len(workers), 8)]
    for result in (of_ranges(items, ranges), of_ranges(items, tree)):
        assert_same_bits(result, {name: expected[name] for name in result})
        assert set(result) == set(expected)


@given(arrays=st.lists(floats, min_size=1, max_size=6), slots=st.integers(1, 6))
def test_of_versions_without_samples_the_first_is_the_mean(arrays, slots):
    items = weighted([{"w": array} for array in arrays], [0] * len(arrays))
    for result in (merged(items), of_ranges(items, aligned_ranges(len(items), slots))):
        np.testing.assert_array_equal(result["w"], arrays[0], strict=True)


@given(st.lists(st.tuples(floats, st.just(0) | counts), min_size=1, max_size=8))
def test_versions_without_samples_do_not_count(voters):
    items = weighted([{"w": array} for array, _ in voters], [count for _, count in voters])
    if voting := [item for item in items if item.total]:
        assert_same_bits(merged(items), merged(voting))
