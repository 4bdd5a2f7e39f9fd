"""A fit that goes on trains what is left: the same rounds, or with other numbers of workers the same samples."""

from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compss_train.data.partitioning import Position, RoundPlan

schedules = st.builds(
    RoundPlan,
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=12).map(tuple),
    num_workers=st.integers(1, 9),
    num_epochs=st.integers(1, 4),
    seed=st.integers(0, 1000),
    shuffle=st.sampled_from(["blocks", "total", "partial", None]),
    merge_every=st.integers(0, 4),
    merge_unit=st.sampled_from(["epochs", "blocks"]),
    first_epoch=st.sampled_from([0, 0, 3]),
    first_round=st.sampled_from([0, 0, 5]),
)


def visit_of(block_pass):
    samples = None if block_pass.samples is None else block_pass.samples.tolist()
    return block_pass.block, block_pass.epoch, block_pass.size, block_pass.first, samples


def plain(round_):
    shares = [[visit_of(block_pass) for block_pass in share] for share in round_.assignments]
    return round_.number, round_.epoch, round_.end_position, shares


def trained(round_, sizes) -> Counter[tuple[int, int]]:
    """How often each sample of each epoch is in a round."""
    starts = np.cumsum([0, *sizes])
    seen: Counter[tuple[int, int]] = Counter()
    for block_pass in (block_pass for share in round_.assignments for block_pass in share):
        first = starts[block_pass.block] + block_pass.first
        samples = range(first, first + block_pass.size) if block_pass.samples is None else block_pass.samples
        seen.update((block_pass.epoch, int(sample)) for sample in samples)
    return seen


def once(sizes, epochs) -> Counter[tuple[int, int]]:
    return Counter({(epoch, sample): 1 for epoch in epochs for sample in range(sum(sizes))})


def resumed(schedule, round_, **others):
    return replace(schedule, start=round_.end_position, first_round=round_.number + 1, **others)


@given(schedules)
def test_from_where_a_round_ends_the_rest_follows(schedule):
    rounds = list(schedule.rounds())
    expected = [plain(round_) for round_ in rounds]
    for k, round_ in enumerate(rounds, 1):
        assert [plain(r) for r in resumed(schedule, round_).rounds()] == expected[k:]
    assert rounds[-1].end_position == Position(schedule.first_epoch + schedule.num_epochs)


@given(schedules, st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), max_size=5))
def test_with_other_numbers_of_workers_no_sample_is_lost_or_repeated(schedule, changes):
    """Each time a few rounds are trained, by as many workers as there are then."""
    epochs = range(schedule.first_epoch, schedule.first_epoch + schedule.num_epochs)
    seen: Counter[tuple[int, int]] = Counter()
    number = schedule.first_round
    for workers, rounds in [*changes, (3, None)]:
        left = list(islice(schedule.rounds(), rounds))
        for round_ in left:
            assert round_.number == number
            assert len(round_.assignments) == schedule.num_workers
            seen += trained(round_, schedule.sizes)
            number += 1
        if left:
            schedule = resumed(schedule, left[-1], num_workers=workers)
    assert seen == once(schedule.sizes, epochs)
    assert list(schedule.rounds()) == [] or changes == []


@given(schedules, st.integers(0, 3), st.integers(1, 9))
def test_the_samples_of_a_schedule_are_those_of_its_rounds(schedule, after, workers):
    begun = list(islice(schedule.rounds(), after))
    if begun:
        schedule = resumed(schedule, begun[-1], num_workers=workers)
    assert schedule.samples == sum(sum(round_.counts) for round_ in schedule.rounds())


@example(RoundPlan((4,) * 6, 2, 3, 0, "blocks", 1, "blocks"), 4, 1)  # in the middle of the second epoch
@given(schedules, st.integers(1, 12), st.integers(1, 6))
def test_a_fit_that_is_to_be_longer_or_shorter_when_it_is_resumed(schedule, after, num_epochs):
    begun = list(islice(schedule.rounds(), after))
    other = resumed(schedule, begun[-1], num_epochs=num_epochs)
    seen = sum((trained(round_, schedule.sizes) for round_ in [*begun, *other.rounds()]), Counter())
    last = max(num_epochs, -(-sum(seen.values()) // sum(schedule.sizes)))
    epochs = range(schedule.first_epoch, schedule.first_epoch + last)
    expected = once(schedule.sizes, epochs)
    # What has been begun of an epoch that is not wanted any more is not ended.
    assert seen == expected if num_epochs >= schedule.num_epochs else seen <= expected
    assert other.samples == sum(sum(round_.counts) for round_ in other.rounds())


@pytest.mark.parametrize("shuffle", ["blocks", "total", "partial", None])
def test_rounds_inside_an_epoch_are_cut_as_when_it_was_begun(shuffle):
    schedule = RoundPlan((4,) * 8, 2, 1, 0, shuffle, 1, "blocks")
    first, *rest = schedule.rounds()
    assert first.end_position == Position(0, 2, 2)
    other = list(resumed(schedule, first, num_workers=3).rounds())
    assert [round_.counts for round_ in rest] == [(4, 4)] * 3
    assert [round_.counts for round_ in other] == [(4, 4, 4)] * 2
    assert [round_.end_position for round_ in other] == [Position(0, 5, 2), Position(1)]
