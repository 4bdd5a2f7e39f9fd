from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.data.partitioning import RoundPlan

sizes = st.lists(st.integers(1, 7), min_size=1, max_size=12).map(tuple)


def samples_of(block_pass, sizes) -> list[int]:
    """The numbers of the samples that a visit trains on."""
    if block_pass.samples is not None:
        return block_pass.samples.tolist()
    start = sum(sizes[: block_pass.block])
    return list(range(start, start + sizes[block_pass.block]))


@given(
    sizes=sizes,
    workers=st.integers(1, 15),
    epochs=st.integers(1, 5),
    every=st.integers(0, 6),
    unit=st.sampled_from(["epochs", "blocks"]),
    shuffle=st.sampled_from(["blocks", "total", None]),
    seed=st.integers(0, 1000),
)
def test_every_sample_is_visited_once_an_epoch(sizes, workers, epochs, every, unit, shuffle, seed):
    schedule = RoundPlan(sizes, workers, epochs, seed, shuffle, every, unit)
    seen: Counter[tuple[int, int]] = Counter()
    for round_ in schedule.rounds():
        assert len(round_.assignments) == workers
        for share, count in zip(round_.assignments, round_.counts, strict=True):
            assert count == sum(len(samples_of(block_pass, sizes)) for block_pass in share)
            seen.update((block_pass.epoch, s) for block_pass in share for s in samples_of(block_pass, sizes))
    assert seen == Counter({(epoch, s): 1 for epoch in range(epochs) for s in range(sum(sizes))})


def test_blocks_are_dealt_round_robin_in_order():
    (round_,) = RoundPlan((1,) * 7, 3, 1, 0, None).rounds()
    dealt = [[block_pass.block for block_pass in share] for share in round_.assignments]
    assert dealt == [[0, 3, 6], [1, 4], [2, 5]]


def test_a_block_shuffle_moves_whole_blocks_to_other_workers():
    schedule = RoundPlan((5,) * 8, 2, 20, 3, "blocks")
    dealt = [frozenset(v.block for v in round_.assignments[0]) for round_ in schedule.rounds()]
    assert all(len(blocks) == 4 for blocks in dealt)
    assert len(set(dealt)) > 10


def test_a_total_shuffle_mixes_samples_over_blocks():
    (round_,) = RoundPlan((50,) * 4, 2, 1, 3, "total").rounds()
    for share in round_.assignments:
        for block_pass in share:
            assert set(np.asarray(block_pass.samples) // 50) == {0, 1, 2, 3}


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
    schedule = RoundPlan((4,) * 6, 2, 5, 0, "blocks", every, unit)
    assert [round_.epoch for round_ in schedule.rounds()] == epochs_of_rounds


def test_a_fit_goes_on_counting_where_the_last_one_ended():
    sizes = (3, 4, 5)
    whole = list(RoundPlan(sizes, 2, 5, 7, "total").rounds())
    parts = [
        *RoundPlan(sizes, 2, 2, 7, "total").rounds(),
        *RoundPlan(sizes, 2, 3, 7, "total", first_epoch=2, first_round=2).rounds(),
    ]
    assert [(r.number, r.epoch) for r in whole] == [(r.number, r.epoch) for r in parts]
    for ours, theirs in zip(whole, parts, strict=True):
        for mine, other in zip(ours.assignments, theirs.assignments, strict=True):
            assert [samples_of(v, sizes) for v in mine] == [samples_of(v, sizes) for v in other]
