"""Properties of every buffer of single samples for any order of puts and gets, against a model of sets."""

import queue
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compss_train.buffers import BufferDrainedError, BufferFullError, ReceptionOverError
from tests.buffers.kinds import PLAIN, drain, make, numbers, put_some, sample, samples

operations = st.lists(st.tuples(st.sampled_from(["put", "get"]), st.integers(1, 6)), max_size=40)


class Model:
    """A model of a buffer: the samples held, and those never got."""

    def __init__(self, kind, capacity, threshold):
        self.kind, self.capacity, self.threshold = kind, capacity, threshold
        self.keeps = "Reservoir" in kind
        self.put, self.got, self.unseen = [], [], []

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
        np.testing.assert_array_equal(np.trim_zeros(buffer.repetitions(), "b"), np.trim_zeros(expected, "b"))


def check_drain(buffer, model, sizes):
    held, unseen, drained = model.held, set(model.unseen), []
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


@settings(max_examples=80)
@pytest.mark.parametrize("kind", PLAIN)
@given(
    capacity=st.integers(2, 8),
    room=st.integers(0, 8),
    todo=operations,
    sizes=st.lists(st.integers(1, 4), max_size=8),
    seed=st.integers(0, 9),
)
def test_each_sample_is_got_at_least_once_and_unseen_ones_are_never_evicted(
    kind, capacity, room, todo, sizes, seed
):
    threshold = 0 if kind == "FIFO" else max(0, capacity - room)
    buffer, model = make(kind, capacity, threshold, seed=seed), Model(kind, capacity, threshold)
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


@pytest.mark.parametrize("kind", PLAIN)
def test_a_put_without_room_in_time_reports_how_many_were_stored(kind):
    buffer = make(kind, 3)
    buffer.put(sample(buffer, 0))
    for options in ({"block": False}, {"timeout": 0}, {"timeout": 0.001}):
        held = len(buffer)
        with pytest.raises(queue.Full, match="3 samples had no room in time") as raised:
            buffer.put_many(samples(buffer, [1, 2, 3, 4]), **options)
        assert isinstance(raised.value, BufferFullError)
        assert raised.value.stored == 3 - held
    assert len(buffer) == 3


def test_an_empty_put_stores_nothing():
    for kind in (*PLAIN, "SimPairedReservoir"):
        buffer = make(kind, 3)
        buffer.put_many([])
        assert (len(buffer), buffer.samples_put) == (0, 0), kind


@pytest.mark.parametrize("kind", [*PLAIN, "SimPairedReservoir"])
def test_waiting_is_that_of_queues(kind):
    buffer = make(kind, 2, threshold=0)
    for options in ({"block": False}, {"timeout": 0}, {"timeout": 0.001}, {"block": False, "timeout": -1}):
        with pytest.raises(queue.Empty, match="were not available in time; 0 are available now"):
            buffer.get(**options)
    for call in (lambda: buffer.get(timeout=-1), lambda: buffer.put(sample(buffer, 0), timeout=-0.5)):
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
def test_a_batch_that_can_never_be_available_is_refused_at_once(kind):
    buffer = make(kind, 5, threshold=2)
    with pytest.raises(ValueError, match=r"size=6: .* capacity 5 returns at most 5 samples at once"):
        buffer.get_batch(6)
    buffer.put_many(samples(buffer, range(5)))
    assert len(numbers(buffer.get_batch(5, block=False))) == 5


@pytest.mark.parametrize("kind", ["FIRO", "Reservoir", "BatchReservoir", "SimPairedReservoir"])
@pytest.mark.parametrize("threshold", [3, 6])
def test_a_get_is_allowed_with_as_many_samples_as_the_threshold_or_after_reception(kind, threshold):
    for number in (threshold - 1, threshold):
        buffer = make(kind, 6, threshold=threshold)
        buffer.put_many(samples(buffer, range(number)))
        assert buffer.is_ready() == (number == threshold)
        if number < threshold:
            with pytest.raises(queue.Empty):
                buffer.get_batch(1, block=False)
            buffer.signal_reception_over()
        buffer.get_batch(1, block=False)
