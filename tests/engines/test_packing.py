"""Workers that share a task are those of an aligned range, whatever tasks cost."""

from hypothesis import given
from hypothesis import strategies as st

from compss_train.engines.packing import aligned_ranges, ranges_for_costs


@given(workers=st.integers(1, 3000), slots=st.integers(1, 50))
def test_ranges_of_workers_are_aligned_and_ever_smaller(workers, slots):
    ranges = aligned_ranges(workers, slots)
    assert [worker for group in ranges for worker in group] == list(range(workers))
    sizes = [len(group) for group in ranges]
    assert sizes == sorted(sizes, reverse=True)
    assert all(
        size.bit_count() == 1 and not group.start % size
        for group, size in zip(ranges, sizes, strict=True)
    )
    assert max(sizes) <= max(1, workers / (3 * slots))
    assert sizes[-min(slots, workers) :] == [1] * min(slots, workers)


@given(
    workers=st.integers(1, 600),
    slots=st.integers(1, 20),
    smallest=st.integers(0, 9).map(lambda power: 2**power),
    ratios=st.lists(st.floats(1e-4, 1e4), min_size=2, max_size=2).map(sorted),
)
def test_ranges_for_dearer_tasks_are_unions_of_smaller_ones(workers, slots, smallest, ratios):
    """So groups can be joined whenever a measurement asks for larger ones."""
    cheap, dear = [ranges_for_costs(workers, slots, 1.0, ratio) for ratio in ratios]
    at_least = aligned_ranges(workers, slots, smallest)
    assert all(len(group) >= smallest for group in at_least[:-1])
    for ranges in (cheap, dear, at_least):
        assert [worker for group in ranges for worker in group] == list(range(workers))
        starts = {group.start for group in ranges}
        assert starts <= {group.start for group in aligned_ranges(workers, slots)}
        assert all(group.start % (1 << (len(group) - 1).bit_length()) == 0 for group in ranges)
    assert len(ranges_for_costs(workers, slots, 1.0, 1e9)) <= slots
    assert ranges_for_costs(workers, slots, 1.0, 0.0) == aligned_ranges(workers, slots)
