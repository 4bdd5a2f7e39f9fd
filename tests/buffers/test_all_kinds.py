"""Properties of every buffer of single samples, for any puts and gets, against a model of sets."""

import pickle
import queue
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.buffers import BufferDrainedError, ReceptionOverError
from tests.buffers.kinds import ALL, PLAIN, drain, make, numbers, put_some, sample, samples

operations = st.lists(st.tuples(st.sampled_from(["put", "get"]), st.integers(1, 6)), max_size=40)


class Model:
    """A model of a buffer: the samples held, and those never got."""

    def __init__(self, kind, capacity, threshold):
        self.kind = kind
        self.capacity = capacity
        self.threshold = threshold
        self.keeps = "Reservoir" in kind
        self.put = []
        self.got = []
        self.unseen = []

    @property
    def held(self):
        return min(self.capacity, len(self.put)) if self.keeps else len(self.unseen)

    def can_get(self, size):
        return self.held >= max(self.threshold, 1 if self.kind == "Reservoir" else size)

    def store(self, stored):
        self.put += stored
        self.unseen += stored

    def give(self, got):
        if self.kind == "FIFO":
            assert got == self.unseen[: len(got)]
        if not self.keeps:
            assert set(got) <= set(self.unseen)
        if self.kind != "Reservoir":
            assert len(set(got)) == len(got)
        self.got += got
        self.unseen = [number for number in self.unseen if number not in got]

    def check(self, buffer):
        assert (len(buffer), buffer.unseen) == (self.held, len(self.unseen))
        if self.kind != "BatchReservoir":  # whose gets take more than one
            assert buffer.is_ready() == self.can_get(1)
        assert (buffer.samples_put, buffer.samples_got) == (len(self.put), len(self.got))
        times = Counter(self.got)
        expected = np.bincount([times[number] for number in self.put], minlength=1)
        np.testing.assert_array_equal(
            np.trim_zeros(buffer.repetitions(), "b"), np.trim_zeros(expected, "b")
        )


def check_drain(buffer, model, sizes):
    held = model.held
    unseen = set(model.unseen)
    drained = []
    for size in sizes:
        if len(drained) == held:
            break
        got = numbers(buffer.get_batch(min(size, model.capacity), block=False))
        assert len(got) == min(size, model.capacity, held - len(drained))
        drained += got
        assert len(buffer) == held - len(drained)
    while len(drained) < held:
        drained += numbers(buffer.get(block=False))
    with pytest.raises(BufferDrainedError, match="reception is over"):
        buffer.get()
    assert len(set(drained)) == len(drained) == held
    assert unseen <= set(drained) <= set(model.put)
    assert set(model.got + drained) == set(model.put)
    if not model.keeps:
        assert len(model.got + drained) == len(model.put)
    if model.kind == "FIFO":
        assert model.got + drained == model.put
    assert buffer.repetitions().sum() == buffer.samples_put == len(model.put)
    assert buffer.repetitions() @ np.arange(len(buffer.repetitions())) == buffer.samples_got


@pytest.mark.parametrize("kind", PLAIN)
@given(
    capacity=st.integers(2, 8),
    room=st.integers(0, 8),
    todo=operations,
    sizes=st.lists(st.integers(1, 4), max_size=8),
    seed=st.integers(0, 9),
)
def test_each_sample_is_got_and_unseen_ones_are_never_evicted(
    kind, capacity, room, todo, sizes, seed
):
    threshold = 0 if kind == "FIFO" else max(0, capacity - room)
    buffer = make(kind, capacity, threshold, seed=seed)
    model = Model(kind, capacity, threshold)
    next_number = 0
    for what, size in todo:
        if what == "put":
            wanted = range(next_number, next_number + size)
            stored = put_some(buffer, wanted)
            assert stored == min(size, capacity - len(model.unseen))
            model.store(list(wanted[:stored]))
            next_number += size
        else:
            size = min(size, capacity)
            if model.can_get(size):
                model.give(numbers(buffer.get_batch(size, block=False)))
            else:
                with pytest.raises(queue.Empty) as raised:
                    buffer.get_batch(size, block=False)
                assert not isinstance(raised.value, BufferDrainedError)
        model.check(buffer)
    buffer.signal_reception_over()
    with pytest.raises(ReceptionOverError) as raised:
        buffer.put_many(samples(buffer, [next_number, next_number + 1]))
    assert raised.value.stored == 0
    check_drain(buffer, model, sizes)


@pytest.mark.parametrize("kind", [*PLAIN, "SimPairedReservoir"])
def test_waiting_is_that_of_queues(kind):
    buffer = make(kind, 2, threshold=0)
    for options in (
        {"block": False},
        {"timeout": 0},
        {"timeout": 0.001},
        {"block": False, "timeout": -1},
    ):
        with pytest.raises(queue.Empty, match="were not available in time; 0 are available now"):
            buffer.get(**options)
    for call in (
        lambda: buffer.get(timeout=-1),
        lambda: buffer.put(sample(buffer, 0), timeout=-0.5),
    ):
        with pytest.raises(ValueError, match="give at least 0 seconds"):
            call()
    assert len(buffer) == 0
    buffer.put_many(samples(buffer, [0, 1]), timeout=0)
    with pytest.raises(queue.Full):
        buffer.put(sample(buffer, 2), False)
    buffer.get(True, 0)
    buffer.signal_reception_over()
    with pytest.raises(queue.Full, match="reception is over"):
        buffer.put(sample(buffer, 2))
    drain(buffer.get)
    with pytest.raises(queue.Empty):
        buffer.get()
    assert buffer.reception_over


@pytest.mark.parametrize("kind", [*PLAIN, "SimPairedReservoir"])
@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_batches_of_no_size_are_refused(kind, size):
    with pytest.raises(ValueError, match="give an integer of at least 1"):
        make(kind, 3).get_batch(size)


@pytest.mark.parametrize("kind", ["FIFO", "FIRO", "BatchReservoir"])
def test_a_batch_that_can_never_come_is_refused_at_once(kind):
    buffer = make(kind, 5, threshold=2)
    with pytest.raises(
        ValueError, match=r"size=6: .* capacity 5 returns at most 5 samples at once"
    ):
        buffer.get_batch(6)
    buffer.put_many(samples(buffer, range(5)))
    assert len(numbers(buffer.get_batch(5, block=False))) == 5


def go_on(buffer, todo, number):
    """Do what need not wait, with samples numbered from ``number``; return all results."""
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
        came += [
            len(buffer),
            buffer.unseen,
            buffer.samples_put,
            buffer.samples_got,
            buffer.is_ready(),
        ]
        came.append(buffer.repetitions().tolist())
    return came


def finish(buffer):
    buffer.signal_reception_over()
    return [numbers(got) for got in drain(buffer.get)]


@pytest.mark.parametrize("kind", ALL)
@given(
    before=operations,
    after=operations,
    threshold=st.integers(0, 2),
    seed=st.integers(0, 9),
    over=st.booleans(),
)
def test_a_buffer_continues_from_a_checkpoint_with_the_same_draws(
    kind, before, after, threshold, seed, over
):
    buffer = make(kind, 6, threshold, seed=seed)
    other = make(kind, 6, threshold, seed=None)
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


@pytest.mark.parametrize("kind", ALL)
def test_states_of_another_kind_or_capacity_are_refused(kind):
    buffer = make(kind, 6)
    put_some(buffer, range(3))
    before = repr(buffer.state_dict())
    states = [make(kind, 7), *(make(other, 6) for other in ALL if other != kind)]
    for other in states:
        with pytest.raises(ValueError, match="this is the state of a buffer"):
            buffer.load_state_dict(other.state_dict())
        assert repr(buffer.state_dict()) == before
