"""``map_items``: the same results, states and reports whatever the chunks, also if they change."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train import SerialEngine
from compss_train.engines.mapping import (
    Chunk,
    ItemRef,
    fetch_items,
    map_chunk,
    map_items,
    whole_values,
)


def adding(step):
    def call(state, item, values):
        after = state + step * item + sum(values)
        return after, after, (item, after)

    return call


def total_and_count(results):
    numbers = [*results]
    return sum(numbers), len(numbers)


@st.composite
def rounds_of_chunks(draw, workers=7):
    cuts = st.sets(st.integers(1, workers - 1))
    bounds = [[0, *sorted(draw(cuts)), workers] for _ in range(draw(st.integers(1, 4)))]
    return [[range(a, b) for a, b in pairwise(of_round)] for of_round in bounds]


@given(rounds=rounds_of_chunks(), apart=st.lists(st.booleans(), min_size=4, max_size=4))
def test_states_follow_their_items_through_changing_chunks(rounds, apart):
    engine = SerialEngine()
    step, value = engine.publish(3), engine.publish(10)
    states = [number * 100 for number in range(7)]
    expected = [*states]
    for chunks, states_apart in zip(rounds, apart, strict=False):
        mapped = map_items(
            engine,
            adding,
            [step],
            [
                Chunk(items=[*chunk], states=[states[n] for n in chunk], values=[value])
                for chunk in chunks
            ],
            combine=total_and_count,
            parts=2,
            states_apart=states_apart,
        )
        states = [state for chunk in mapped for state in chunk.states]
        expected = [state + 3 * number + 10 for number, state in enumerate(expected)]
        assert fetch_items(engine, states) == expected
        totals, counts = zip(*(engine.fetch(chunk.results) for chunk in mapped), strict=True)
        assert (sum(totals), list(counts)) == (sum(expected), [len(chunk) for chunk in chunks])
        reports = engine.fetch([chunk.reports for chunk in mapped])
        assert [report for of_chunk in reports for report in of_chunk] == [*enumerate(expected)]


def test_small_states_are_one_value_and_each_is_passed_once():
    engine = SerialEngine()
    chunks = [Chunk(items=[0, 1, 2], states=[1, 1, 1])]
    (mapped,) = map_items(
        engine, adding, [1], chunks, combine=total_and_count, parts=2, states_apart=False
    )
    assert all(isinstance(state, ItemRef) for state in mapped.states)
    assert len(whole_values(mapped.states)) == 1
    assert fetch_items(engine, [7, *mapped.states]) == [7, 1, 2, 3]


def test_a_combiner_that_leaves_results_out_is_told():
    with pytest.raises(ValueError, match="combining 2 results gave 1 parts of 1, from 1"):
        map_chunk(
            adding, lambda results: [next(results)], 1, True, [1, 2], [(0, None)] * 2, [0], [], 1
        )
