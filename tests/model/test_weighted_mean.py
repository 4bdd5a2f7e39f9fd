"""Weighted means: whoever adds up an aligned range of workers, the bits are the same."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from compss_train.model.metrics import Measured
from compss_train.model.weighted_mean import PartialSum, aligned_ranges, mean, partial_sum, ranges_for_costs
from tests.helpers.means import average, weighted
from tests.helpers.models import assert_same_bits
from tests.helpers.tolerances import sum_error

LARGEST = 1e6
floats = hnp.arrays(np.float32, (3, 2), elements=st.floats(-LARGEST, LARGEST, width=32))
counts = st.integers(1, 2**28)


def assert_means(ours, theirs):
    """Up to 8 versions are weighted and summed in double precision, in any order, and rounded once."""
    rounding = np.finfo(np.float32).eps
    np.testing.assert_allclose(ours, theirs, rtol=rounding, atol=sum_error(np.float64, 8, 2 * LARGEST))


def version(array):
    return {"w": array, "steps": np.array(int(abs(array.sum())) % 100), "on": array[0] > 0}


def of_ranges(items, ranges):
    """Return the mean of sums, each of a range of items."""
    sums = [partial_sum(inside) for each in ranges if (inside := [i for i in items if i.first in each])]
    return dict(mean(sums, {}))


@given(array=floats, count=counts)
def test_the_mean_of_one_version_is_that_version(array, count):
    (one,) = weighted([version(array)], [count])
    assert mean([one], {}) is one.values
    assert mean([partial_sum([one])], {}) is one.values


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
    places=st.integers(1, 9),
    seed=st.integers(0, 2**32),
)
def test_who_adds_up_does_not_matter(workers, places, seed):
    """Some workers are absent, some have no samples, and some lack a name."""
    random = np.random.default_rng(seed)
    versions = [version(random.normal(size=(3, 2)).astype(np.float32)) for _ in workers]
    for one in versions[::3]:
        del one["on"]
    items = weighted(versions, [count for count, _ in workers])
    items = [item for item, (_, is_there) in zip(items, workers, strict=True) if is_there] or items[:1]
    expected = dict(mean(items, {}))
    ranges = aligned_ranges(len(workers), places)
    tree = [range(start, start + 8) for start in range(0, len(workers), 8)]
    for result in (of_ranges(items, ranges), of_ranges(items, tree)):
        assert_same_bits(result, {name: expected[name] for name in result})
        assert set(result) == set(expected)


@given(workers=st.integers(1, 3000), places=st.integers(1, 50))
def test_ranges_of_workers_are_aligned_and_ever_smaller(workers, places):
    ranges = aligned_ranges(workers, places)
    assert [worker for each in ranges for worker in each] == list(range(workers))
    sizes = [len(each) for each in ranges]
    assert sizes == sorted(sizes, reverse=True)
    assert all(size.bit_count() == 1 and not each.start % size for each, size in zip(ranges, sizes, strict=True))
    assert max(sizes) <= max(1, workers / (3 * places))
    assert sizes[-min(places, workers) :] == [1] * min(places, workers)


@given(
    workers=st.integers(1, 600),
    places=st.integers(1, 20),
    smallest=st.integers(0, 9).map(lambda power: 2**power),
    ratios=st.lists(st.floats(1e-4, 1e4), min_size=2, max_size=2).map(sorted),
)
def test_ranges_for_dearer_tasks_are_unions_of_smaller_ones(workers, places, smallest, ratios):
    """So groups can be joined whenever a measurement asks for larger ones."""
    cheap, dear = (ranges_for_costs(workers, places, 1.0, ratio) for ratio in ratios)
    at_least = aligned_ranges(workers, places, smallest)
    assert all(len(each) >= smallest for each in at_least[:-1])
    for ranges in (cheap, dear, at_least):
        assert [worker for each in ranges for worker in each] == list(range(workers))
        starts = {each.start for each in ranges}
        assert starts <= {each.start for each in aligned_ranges(workers, places)}
        assert all(each.start % (1 << (len(each) - 1).bit_length()) == 0 for each in ranges)
    assert len(ranges_for_costs(workers, places, 1.0, 1e9)) <= places
    assert ranges_for_costs(workers, places, 1.0, 0.0) == aligned_ranges(workers, places)


def test_measurements_pass_through_sums_in_the_order_of_the_workers():
    arrays = {"w": np.ones(2)}
    items = [
        PartialSum.of_worker(arrays, count, number, Measured(given=number))
        for number, count in enumerate([3, 0, 0])
    ]
    nobody = partial_sum(items[1:])
    assert [each.given for each in nobody.measured] == [1, 2]
    assert [each.given for each in partial_sum([items[0], nobody]).measured] == [0, 1, 2]


@given(workers=st.integers(32, 2000), slower=st.floats(1, 4), slow_first=st.booleans())
def test_one_of_two_places_may_be_four_times_slower(workers, slower, slow_first):
    """Each place takes the next range when it is idle; a worker takes a second on the faster one."""
    idle_at = [0.0, 0.0] if slow_first else [0.0, 1e-9]
    seconds = [slower, 1.0]
    for each in aligned_ranges(workers, 2):
        place = idle_at.index(min(idle_at))
        idle_at[place] += len(each) * seconds[place]
    together = workers / (1 + 1 / slower)
    assert max(idle_at) <= max(together / 0.9, together + slower)  # or the last task of the slow one is the rest


@given(arrays=st.lists(floats, min_size=1, max_size=6), places=st.integers(1, 6))
def test_of_versions_without_samples_the_first_is_the_mean(arrays, places):
    items = weighted([{"w": array} for array in arrays], [0] * len(arrays))
    for result in (mean(items, {}), of_ranges(items, aligned_ranges(len(items), places))):
        np.testing.assert_array_equal(result["w"], arrays[0], strict=True)


@given(st.lists(st.tuples(floats, st.just(0) | counts), min_size=1, max_size=8))
def test_versions_without_samples_do_not_count(voters):
    items = weighted([{"w": array} for array, _ in voters], [count for _, count in voters])
    if voting := [item for item in items if item.count]:
        assert_same_bits(dict(mean(items, {})), dict(mean(voting, {})))
