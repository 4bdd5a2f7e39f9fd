"""Round plans: every sample is assigned once an epoch, also after a resume with other numbers of
workers.
"""

from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compss_train.buffers import BufferSpec
from compss_train.data.block_passes import Batching
from compss_train.data.partitioning import ResumePoint, RoundPlan

HOW = st.one_of(
    st.fixed_dictionaries(
        {"merge_unit": st.sampled_from(["epochs", "blocks"]), "merge_every": st.integers(0, 6)}
    ),
    st.fixed_dictionaries(
        {
            "merge_unit": st.just("batches"),
            "merge_every": st.integers(1, 6),
            "batching": st.builds(Batching, size=st.integers(1, 8))
            | st.builds(Batching, number=st.integers(1, 3)),
        }
    ),
)
"""When workers merge."""
SIZE_LISTS = st.lists(st.integers(1, 7), min_size=1, max_size=12).map(tuple)


@pytest.mark.parametrize(
    ("unit", "every", "epochs_of_rounds"),
    [
        ("epochs", 1, [1, 2, 3, 4, 5]),
        ("epochs", 2, [2, 4, 5]),
        ("epochs", 0, [5]),
        ("epochs", 9, [5]),
        ("blocks", 2, [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]),
        ("blocks", 0, [5]),
    ],
)
def test_rounds_end_where_merging_says_so(unit, every, epochs_of_rounds):
    plan = RoundPlan((4,) * 6, 2, 5, 0, shuffle="blocks", merge_every=every, merge_unit=unit)
    assert [round_.last_epoch + 1 for round_ in plan.rounds()] == epochs_of_rounds


plans = st.builds(
    lambda how, first_epoch, num_epochs, **others: RoundPlan(
        **how, start=ResumePoint(first_epoch), stop=first_epoch + num_epochs, **others
    ),
    how=HOW,
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=12).map(tuple),
    num_workers=st.integers(1, 9),
    num_epochs=st.integers(1, 4),
    seed=st.integers(0, 1000),
    shuffle=st.sampled_from(["blocks", "total", "partial", None]),
    first_epoch=st.sampled_from([0, 0, 3]),
    first_round=st.sampled_from([0, 0, 5]),
)


def fields_of(block_pass):
    samples = None if block_pass.sample_numbers is None else block_pass.sample_numbers.tolist()
    part = block_pass.first, block_pass.skip, block_pass.remaining
    return block_pass.block, block_pass.epoch, block_pass.size, part, samples


def plain(round_):
    assignments = [
        [fields_of(block_pass) for block_pass in assignment] for assignment in round_.assignments
    ]
    return round_.number, round_.last_epoch, round_.resume_point, round_.spans, assignments


def trained(round_, sizes) -> Counter[tuple[int, int]]:
    """Return how often each sample of each epoch is in a round."""
    starts = np.cumsum([0, *sizes])
    seen: Counter[tuple[int, int]] = Counter()
    for block_pass in (
        block_pass for assignment in round_.assignments for block_pass in assignment
    ):
        first = starts[block_pass.block] + block_pass.first + block_pass.skip
        samples = (
            range(first, first + block_pass.size)
            if block_pass.sample_numbers is None
            else block_pass.sample_numbers
        )
        seen.update((block_pass.epoch, int(sample)) for sample in samples)
    return seen


def once(sizes, epochs) -> Counter[tuple[int, int]]:
    return Counter({(epoch, sample): 1 for epoch in epochs for sample in range(sum(sizes))})


def resumed(plan, round_, **others):
    return replace(plan, start=round_.resume_point, first_round=round_.number + 1, **others)


@given(plans)
def test_from_where_a_round_ends_the_rest_follows(plan):
    rounds = list(plan.rounds())
    expected = [plain(round_) for round_ in rounds]
    for k, round_ in enumerate(rounds, 1):
        assert [plain(r) for r in resumed(plan, round_).rounds()] == expected[k:]
    assert rounds[-1].resume_point == ResumePoint(plan.stop)


@given(plans, st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), max_size=5))
def test_other_numbers_of_workers_lose_and_repeat_nothing(plan, changes):
    """Each step trains a few rounds, with another number of workers."""
    epochs = range(plan.start.epoch, plan.stop)
    seen: Counter[tuple[int, int]] = Counter()
    number = plan.first_round
    for workers, rounds in [*changes, (3, None)]:
        left = list(islice(plan.rounds(), rounds))
        for round_ in left:
            assert round_.number == number
            assert len(round_.assignments) == plan.num_workers
            sizes = [
                sum(block_pass.size for block_pass in assignment)
                for assignment in round_.assignments
            ]
            assert round_.counts == tuple(sizes)
            seen += trained(round_, plan.sizes)
            number += 1
        if left:
            plan = resumed(plan, left[-1], num_workers=workers)
    assert seen == once(plan.sizes, epochs)
    assert list(plan.rounds()) == [] or changes == []


# The example resumes in the middle of the second epoch.
@example(RoundPlan((4,) * 6, 2, 3, 0, shuffle="blocks", merge_every=1, merge_unit="blocks"), 4, 1)
@given(plans, st.integers(1, 12), st.integers(1, 6))
def test_a_fit_is_longer_or_shorter_when_resumed(plan, after, num_epochs):
    begun = list(islice(plan.rounds(), after))
    first = plan.start.epoch
    remaining = resumed(plan, begun[-1], stop=first + num_epochs)
    seen = sum((trained(round_, plan.sizes) for round_ in [*begun, *remaining.rounds()]), Counter())
    last = max(num_epochs, -(-sum(seen.values()) // sum(plan.sizes)))
    epochs = range(first, first + last)
    expected = once(plan.sizes, epochs)
    # What has been begun of an epoch that is not wanted any more is not ended.
    assert seen == expected if remaining.stop >= plan.stop else seen <= expected
    samples = sum(sum(round_.counts) for round_ in remaining.rounds())
    assert remaining.samples_left == samples


@pytest.mark.parametrize("shuffle", ["blocks", "total", "partial", None])
def test_rounds_of_an_epoch_are_cut_as_at_first(shuffle):
    plan = RoundPlan((4,) * 8, 2, 1, 0, shuffle=shuffle, merge_every=1, merge_unit="blocks")
    first, *later = plan.rounds()
    assert first.resume_point == ResumePoint(0, 2, 2)
    of_three = list(resumed(plan, first, num_workers=3).rounds())
    assert [round_.counts for round_ in later] == [(4, 4)] * 3
    assert [round_.counts for round_ in of_three] == [(4, 4, 4)] * 2
    assert [round_.resume_point for round_ in of_three] == [ResumePoint(0, 5, 2), ResumePoint(1)]


@given(plans.filter(lambda plan: plan.merge_unit != "epochs" and plan.merge_every))
def test_the_spans_of_a_worker_follow_each_other(plan):
    spans = [[] for _ in range(plan.num_workers)]
    for round_ in plan.rounds():
        for worker, span in enumerate(round_.spans):
            if round_.counts[worker]:
                spans[worker].append(span)
    for bounds in map(np.ravel, spans):
        assert all(before < after for before, after in bounds.reshape(-1, 2))
        assert all(
            (end, begin) == (1, 0) or end == begin for end, begin in bounds[1:-1].reshape(-1, 2)
        )
        assert len(bounds) == 0 or (bounds[0], bounds[-1]) == (0, 1)


@given(
    sizes=SIZE_LISTS,
    workers=st.integers(1, 9),
    every=st.integers(1, 6),
    batching=st.builds(Batching, size=st.integers(1, 8))
    | st.builds(Batching, number=st.integers(1, 3)),
    shuffle=st.sampled_from(["blocks", "total", None]),
    buffer=st.builds(BufferSpec, st.just("FIRO"), st.integers(16, 40), st.integers(0, 8)),
)
def test_each_sample_enters_a_buffer_and_is_drawn_once(
    sizes, workers, every, batching, shuffle, buffer
):
    plan = RoundPlan(
        sizes,
        workers,
        2,
        3,
        shuffle=shuffle,
        merge_every=every,
        merge_unit="batches",
        batching=batching,
        put_counts=buffer.put_counts,
    )
    rounds = list(plan.rounds())
    put = [0] * workers
    drawn = [0] * workers
    seen = Counter()
    assert plan.samples_left == sum(sum(round_.counts) for round_ in rounds) == 2 * sum(sizes)
    for k, round_ in enumerate(rounds, 1):
        seen += trained(round_, sizes)
        for worker, (assignment, draws) in enumerate(
            zip(round_.assignments, round_.draws, strict=True)
        ):
            put[worker] += sum(block_pass.size for block_pass in assignment)
            drawn[worker] += round_.counts[worker]
            assert 0 <= put[worker] - drawn[worker] <= buffer.capacity
            assert draws is None or len(draws.sizes) <= every
        assert [plain(r) for r in resumed(plan, round_).rounds()] == [plain(r) for r in rounds[k:]]
    assert seen == once(sizes, range(2))
    assert put == drawn
