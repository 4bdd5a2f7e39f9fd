"""Buffers have the methods of queue.Queue, with its meaning."""

import queue
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.buffers.kinds import ALL, PLAIN, Hold, Thread, make, numbers, sample, samples
from tests.buffers.kinds import until_waiting as waiting

CALLS = st.sampled_from(["put_nowait", "get_nowait", "task_done"])


def called(queue_like, name, number):
    """Call a method; return its result, or the type of what it raises."""
    try:
        return getattr(queue_like, name)(*([number] if name == "put_nowait" else []))
    except (queue.Empty, queue.Full, ValueError) as error:
        return next(kind for kind in (queue.Empty, queue.Full, ValueError) if isinstance(error, kind))


@settings(max_examples=100)
@given(capacity=st.integers(1, 4), calls=st.lists(CALLS, max_size=40))
def test_a_fifo_is_a_queue(capacity, calls):
    ours, theirs = make("FIFO", capacity), queue.Queue(capacity)
    for number, name in enumerate(calls):
        assert called(ours, name, number) == called(theirs, name, number)
        for words in ("qsize", "empty", "full"):
            assert getattr(ours, words)() == getattr(theirs, words)()
        assert (ours.maxsize, ours.unfinished_tasks) == (theirs.maxsize, theirs.unfinished_tasks)


@pytest.mark.parametrize("kind", ALL)
def test_a_join_waits_for_every_sample_and_every_get(kind):
    buffer = make(kind, 6, seed=3)
    buffer.put_many(samples(buffer, range(4)))
    joining = Thread(buffer.join)
    waiting(buffer)
    while buffer.unseen:
        got = numbers(buffer.get_batch(1))
        assert joining.is_alive()
        buffer.task_done(len(got))
    joining.result()
    assert buffer.unfinished_tasks == 0
    with pytest.raises(ValueError, match=r"task_done\(\) called too many times: number=1, and 0 unfinished"):
        buffer.task_done()


def test_time_steps_that_have_no_partner_at_the_end_are_no_tasks():
    buffer = make("SimPairedReservoir", 6)
    buffer.put_many(samples(buffer, [0, 1, 8]))
    buffer.get()
    buffer.task_done(2)
    joining = Thread(buffer.join)
    waiting(buffer)
    assert buffer.unfinished_tasks == 1
    buffer.signal_reception_over()
    assert buffer.unfinished_tasks == 1  # there still is a pair to get
    buffer.get()
    buffer.task_done(2)
    joining.result()
    assert buffer.unseen == len(buffer) == 1


def test_a_put_that_fails_after_reception_lets_a_join_go_on():
    buffer = make("SimPairedReservoir", 6)
    buffer.put(sample(buffer, 8))
    write = Hold(buffer._store, "write", RuntimeError())
    putter = Thread(buffer.put, sample(buffer, 0))
    write.entered()
    buffer.signal_reception_over()
    joining = Thread(buffer.join)
    waiting(buffer)
    write.release()
    joining.result()
    with pytest.raises(RuntimeError):
        putter.result()


@pytest.mark.parametrize("number", [0, -1, 1.5, True])
def test_a_number_of_tasks_is_a_count(number):
    with pytest.raises(ValueError, match=r"number=.*at least 1"):
        make("FIFO", 2).task_done(number)


@pytest.mark.parametrize("kind", PLAIN)
def test_samples_got_before_a_checkpoint_are_done(kind):
    buffer, other = make(kind, 4), make(kind, 4)
    buffer.put_many([0, 1, 2])
    buffer.get_batch(2)
    other.load_state_dict(buffer.state_dict())
    assert other.unfinished_tasks == other.unseen == buffer.unseen


@pytest.mark.parametrize("kind", ALL)
def test_how_often_each_sample_was_got_is_in_the_order_of_the_state(kind):
    buffer, times = make(kind, 5, seed=1), Counter()
    buffer.put_many(samples(buffer, range(5)))
    for _ in range(3):
        times.update(numbers(buffer.get_batch(1)))
    held = buffer.state_dict()["samples"].tolist()
    assert buffer.seen_counts().tolist() == [times[number] for number in held]
    seen = [times[number] for number in range(5) if number not in held] + buffer.seen_counts().tolist()
    np.testing.assert_array_equal(np.bincount(seen), np.trim_zeros(buffer.repetitions(), "b"))
    assert make(kind, 5).seen_counts().tolist() == []
