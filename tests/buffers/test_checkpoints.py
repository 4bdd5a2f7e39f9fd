"""A buffer that loads a state continues with the same draws."""

import pickle
import queue

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compss_train.buffers import FIRO, SimPairedReservoir, TimeStep
from tests.buffers.kinds import ALL, STEPS, drain, make, numbers, put_some, sample

operations = st.lists(st.tuples(st.sampled_from(["put", "get"]), st.integers(1, 4)), max_size=25)


def go_on(buffer, todo, number):
    """Do the operations that need not wait, with samples numbered from ``number``; return all results."""
    came = []
    for what, size in todo:
        if what == "put":
            came.append(put_some(buffer, range(number, number + size)))
            number += size
        else:
            try:
                came.append(numbers(buffer.get_batch(size, block=False)))
            except queue.Empty:
                came.append(None)
        came += [len(buffer), buffer.unseen, buffer.samples_put, buffer.samples_got, buffer.is_ready()]
        came.append(buffer.repetitions().tolist())
    return came


def finish(buffer):
    buffer.signal_reception_over()
    return [numbers(got) for got in drain(buffer.get)]


@settings(max_examples=40)
@pytest.mark.parametrize("kind", ALL)
@given(before=operations, after=operations, threshold=st.integers(0, 2), seed=st.integers(0, 9), over=st.booleans())
def test_a_buffer_continues_from_a_checkpoint_with_the_same_draws(kind, before, after, threshold, seed, over):
    buffer, other = make(kind, 6, threshold, seed=seed), make(kind, 6, threshold, seed=None)
    go_on(buffer, before, 0)
    go_on(other, [("put", 3), ("get", 2), ("put", 2)], 800)
    if over:
        buffer.signal_reception_over()
    state = buffer.state_dict()
    stored = pickle.dumps(state)
    expected = [go_on(buffer, after, 200), finish(buffer), buffer.repetitions().tolist()]
    assert pickle.dumps(state) == stored
    other.load_state_dict(pickle.loads(stored))
    assert other.reception_over == over
    assert [go_on(other, after, 200), finish(other), other.repetitions().tolist()] == expected


@pytest.mark.parametrize("value", [None, (1, 2), "text", {"a": [1]}], ids=str)
@pytest.mark.parametrize("kind", ALL)
def test_objects_are_in_the_checkpoint(kind, value):
    buffer, other = make(kind, 4), make(kind, 4)
    for number in range(2):
        buffer.put(sample(buffer, number, [value]))
    other.load_state_dict(pickle.loads(pickle.dumps(buffer.state_dict())))
    got = other.get_batch(1)
    assert (got[0].data if kind == "SimPairedReservoir" else got) == [[value]]


@pytest.mark.parametrize("got", range(13))
def test_passes_continue_from_a_checkpoint(got):
    buffer, other = (FIRO(5, 0, passes=3, seed=seed) for seed in (1, 2))
    buffer.put_many(list(range(4)))
    if got:
        buffer.signal_reception_over()
        for _ in range(got):
            buffer.get()
    other.load_state_dict(pickle.loads(pickle.dumps(buffer.state_dict())))
    assert finish(other) == finish(buffer)
    assert other.repetitions().tolist() == buffer.repetitions().tolist() == [0, 0, 0, 4]


def test_statistics_of_pairs_are_in_the_checkpoint():
    buffer, other = make("SimPairedReservoir", 20, 5), make("SimPairedReservoir", 20, 5)
    buffer.put_many([sample(buffer, number) for number in range(18)])
    buffer.get_batch(30)
    other.load_state_dict(buffer.state_dict())
    assert other.simulation_uses() == buffer.simulation_uses() != {}
    np.testing.assert_array_equal(other.time_differences(), buffer.time_differences())
    with pytest.raises(ValueError, match="held already"):
        other.put(sample(other, 17))


@pytest.mark.parametrize("kind", ALL)
def test_states_of_another_kind_or_capacity_are_refused_and_change_nothing(kind):
    buffer = make(kind, 6)
    put_some(buffer, range(3))
    before = repr(buffer.state_dict())
    states = [make(kind, 7), *(make(other, 6) for other in ALL if other != kind)]
    for other in states:
        with pytest.raises(ValueError, match="this is the state of a buffer"):
            buffer.load_state_dict(other.state_dict())
        assert repr(buffer.state_dict()) == before


def test_a_state_of_another_number_of_time_steps_is_refused_and_changes_nothing():
    buffer, other = SimPairedReservoir(6, 0, 5, STEPS), SimPairedReservoir(6, 0, 5, STEPS + 1)
    buffer.put(TimeStep(0, STEPS - 1, torch.tensor(1)))
    other.put_many([TimeStep(0, step, torch.tensor(step)) for step in range(3)])
    other.signal_reception_over()
    before = repr(buffer.state_dict())
    with pytest.raises(ValueError, match=f"{STEPS + 1}.*not {STEPS}"):
        buffer.load_state_dict(other.state_dict())
    assert repr(buffer.state_dict()) == before
