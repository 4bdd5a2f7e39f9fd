"""Threads that wait for each other; every order of events is forced."""

import queue

import pytest
import torch

from compss_train.buffers import BufferDrainedError, BufferFullError, ReceptionOverError
from tests.buffers.kinds import (
    ALL,
    RESERVOIRS,
    Hold,
    Thread,
    drain,
    make,
    numbers,
    put_some,
    sample,
    samples,
    until,
)
from tests.buffers.kinds import until_waiting as waiting


def fill(buffer):
    assert put_some(buffer, range(20)) == buffer.capacity


@pytest.mark.parametrize("kind", ALL)
def test_a_get_waits_until_as_many_samples_as_the_threshold_are_held(kind):
    threshold = 2 if kind == "FIFO" else 4  # a FIFO has none, and waits for the batch
    buffer = make(kind, 6, threshold)
    getter = Thread(buffer.get_batch, 2)
    waiting(buffer)
    buffer.put_many(samples(buffer, range(threshold - 1)))
    waiting(buffer)
    assert getter.is_alive()
    buffer.put(sample(buffer, threshold - 1))
    assert len(numbers(getter.result())) in (2, 4)


@pytest.mark.parametrize("kind", ALL)
def test_a_put_waits_while_all_samples_are_unseen_and_continues_after_a_get(kind):
    buffer = make(kind, 4, batch_size=1)
    fill(buffer)
    putter = Thread(buffer.put, sample(buffer, 4))
    waiting(buffer)
    assert buffer.unseen == len(buffer) == 4
    buffer.get()
    putter.result()
    assert (len(buffer), buffer.samples_put) == (4, 5)


@pytest.mark.parametrize("kind", ALL)
def test_the_end_of_reception_wakes_all_who_wait(kind):
    full, empty = make(kind, 3), make(kind, 3)
    fill(full)
    putters = [Thread(full.put_many, samples(full, [number, number + 1])) for number in (4, 6)]
    getters = [Thread(empty.get) for _ in range(2)]
    until(lambda: full._waiting == empty._waiting == 2)
    full.signal_reception_over()
    empty.signal_reception_over()
    for putter in putters:
        with pytest.raises(ReceptionOverError) as raised:
            putter.result()
        assert raised.value.stored == 0
    for getter in getters:
        with pytest.raises(BufferDrainedError):
            getter.result()


@pytest.mark.parametrize("kind", ALL)
def test_what_is_being_written_when_reception_ends_is_not_lost(kind):
    buffer = make(kind, 6, 0 if kind == "FIFO" else 4)
    write = Hold(buffer._store, "write")
    putter = Thread(buffer.put_many, samples(buffer, [0, 1]))
    write.entered()
    buffer.signal_reception_over()
    with pytest.raises(queue.Empty) as raised:
        buffer.get(block=False)
    assert not isinstance(raised.value, BufferDrainedError)
    getter = Thread(buffer.get_batch, 1 if kind == "SimPairedReservoir" else 2)
    waiting(buffer)
    write.release()
    putter.result()
    assert sorted(numbers(getter.result())) == [0, 1]
    with pytest.raises(BufferDrainedError):
        buffer.get()


class BrokenError(Exception):
    pass


@pytest.mark.parametrize("kind", ALL)
def test_a_write_that_fails_leaves_its_room_to_a_put_that_waits(kind):
    buffer = make(kind, 2)
    buffer.put(sample(buffer, 0))
    write = Hold(buffer._store, "write", BrokenError())
    broken = Thread(buffer.put, sample(buffer, 1))
    write.entered()
    putter = Thread(buffer.put, sample(buffer, 2))
    waiting(buffer)
    write.release()
    with pytest.raises(BrokenError):
        broken.result()
    putter.result()
    assert (len(buffer), buffer.samples_put, buffer.repetitions().tolist()) == (2, 2, [2])
    buffer.signal_reception_over()
    assert sorted(numbers(buffer.get_batch(1 if kind == "SimPairedReservoir" else 2))) == [0, 2]


@pytest.mark.parametrize(("kind", "first"), [("FIRO", [0, 1]), ("SimPairedReservoir", [0, 8])])
def test_a_put_that_waits_learns_that_no_room_will_come(kind, first):
    buffer = make(kind, 2, pseudo_epochs=2)
    write = Hold(buffer._store, "write")
    other = Thread(buffer.put_many, samples(buffer, first))
    write.entered()
    putter = Thread(buffer.put, sample(buffer, 16))
    waiting(buffer)
    write.release()
    other.result()
    with pytest.raises(BufferFullError, match="capacity"):
        putter.result()


@pytest.mark.parametrize("kind", RESERVOIRS)
@pytest.mark.parametrize("make_data", [torch.tensor, str], ids=["tensors", "objects"])
def test_a_sample_that_is_evicted_while_a_get_copies_it_is_got_whole(kind, make_data):
    buffer = make(kind, 2, batch_size=2)
    buffer.put_many([sample(buffer, number, make_data(number)) for number in (0, 1)])
    read = Hold(buffer._store, "read")
    getter = Thread(buffer.get_batch, 2 if kind != "SimPairedReservoir" else 1)
    read.entered()
    putter = Thread(buffer.put, sample(buffer, 2, make_data(2)))
    until(lambda: buffer._in_flight)  # a slot is taken for it, and none was free
    read.release()
    got = getter.result()
    putter.result()
    parts = [part.data for part in got] if kind == "SimPairedReservoir" else [got]
    values = [int(value) for part in parts for value in part]
    assert set(values) <= {0, 1}
    assert kind == "Reservoir" or len(set(values)) == 2


@pytest.mark.parametrize("kind", ALL)
def test_the_histogram_counts_samples_that_a_get_is_still_copying(kind):
    buffer = make(kind, 2, batch_size=1)
    buffer.put_many(samples(buffer, [0, 1]))
    buffer.signal_reception_over()
    read = Hold(buffer._store, "read")
    getter = Thread(buffer.get)
    read.entered()
    histogram, state = buffer.repetitions(), buffer.state_dict()
    read.release()
    getter.result()
    assert histogram.sum() == 2
    other = make(kind, 2, batch_size=1)
    other.load_state_dict(state)
    assert other.repetitions().sum() == 2


@pytest.mark.parametrize("kind", ALL)
def test_a_checkpoint_is_not_loaded_during_a_put(kind):
    buffer = make(kind, 3)
    write = Hold(buffer._store, "write")
    putter = Thread(buffer.put, sample(buffer, 0))
    write.entered()
    state = make(kind, 3).state_dict()
    with pytest.raises(RuntimeError, match="call load_state_dict when it has finished"):
        buffer.load_state_dict(state)
    write.release()
    putter.result()
    assert len(buffer) == 1
    buffer.load_state_dict(state)
    assert (len(buffer), buffer.samples_put) == (0, 0)


def test_a_checkpoint_loaded_during_a_get_is_refused_or_complete():
    # The get frees, when it ends, a slot that may by then hold one of the samples loaded.
    buffer = make("FIFO", 2)
    buffer.put_many(samples(buffer, [7, 8]))
    state = buffer.state_dict()
    read = Hold(buffer._store, "read")
    getter = Thread(buffer.get)
    read.entered()
    try:
        buffer.load_state_dict(state)
        expected = [7, 8]
    except RuntimeError:
        expected = [8]
    read.release()
    assert numbers(getter.result()) == [7]
    assert put_some(buffer, [9, 10, 11]) == 2 - len(expected)
    buffer.signal_reception_over()
    assert [numbers(got) for got in drain(buffer.get)] == [[7], [8]][-len(expected) :] + [[9]] * (2 - len(expected))


def test_a_time_step_that_is_held_is_refused_before_any_waiting_and_before_others_are_stored():
    buffer = make("SimPairedReservoir", 4)
    buffer.put_many(samples(buffer, range(4)))
    with pytest.raises(ValueError, match="time step 2 of simulation 0 is held already"):
        buffer.put(sample(buffer, 2))
    buffer = make("SimPairedReservoir", 4)
    buffer.put_many(samples(buffer, [2, 3]))
    with pytest.raises(ValueError, match="time step 3 of simulation 0 is held already"):
        buffer.put_many(samples(buffer, [4, 5, 6, 3]))
    assert len(buffer) == 2


@pytest.mark.parametrize("kind", [*RESERVOIRS[:2], "FIRO"])
def test_objects_that_leave_stay_until_an_earlier_get_has_copied_them(kind):
    # FIRO gives samples that stay in all but the last of its passes.
    buffer, objects = make(kind, 4, batch_size=4, pseudo_epochs=2), [f"object {number}" for number in range(4)]
    buffer.put_many(objects)
    if kind == "FIRO":
        buffer.signal_reception_over()
    hold = Hold(buffer._store, "read")
    first = Thread(buffer.get_batch, 4)
    hold.entered()
    buffer.signal_reception_over()
    last = Thread(buffer.get_batch, 4)
    until(lambda: len(buffer) == 0)
    hold.release()
    assert set(first.result()) <= set(objects)
    assert sorted(last.result()) == objects
