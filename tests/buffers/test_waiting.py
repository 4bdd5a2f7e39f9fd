"""Threads that wait for each other; every order of events is forced; and buffers as queues."""

import queue
import sys
import threading
from collections import Counter

import numpy as np
import pytest

from compss_train.buffers import BufferDrainedError, ReceptionOverError
from tests.buffers.kinds import (
    ALL,
    STEPS,
    Thread,
    make,
    numbers,
    put_some,
    sample,
    samples,
)
from tests.buffers.kinds import until_waiting as waiting
from tests.helpers.waiting import wait_until


def fill(buffer):
    assert put_some(buffer, range(20)) == buffer.capacity


@pytest.mark.parametrize("kind", ALL)
def test_a_get_waits_until_the_threshold_is_held(kind):
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
def test_a_put_waits_while_all_samples_are_unseen(kind):
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
    full = make(kind, 3)
    empty = make(kind, 3)
    fill(full)
    putters = [Thread(full.put_many, samples(full, [number, number + 1])) for number in (4, 6)]
    getters = [Thread(empty.get) for _ in range(2)]
    wait_until(lambda: full.waiting == empty.waiting == 2)
    full.signal_reception_over()
    empty.signal_reception_over()
    for putter in putters:
        with pytest.raises(ReceptionOverError) as raised:
            putter.result()
        assert raised.value.stored == 0
    for getter in getters:
        with pytest.raises(BufferDrainedError):
            getter.result()


EACH = 3 * STEPS
"""Samples of a producer: whole simulations, so that pairs come together."""


@pytest.fixture(autouse=True)
def _threads_take_turns_often():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


class ThreadSchedule:
    """Producers, consumers, and one more thread that ends reception at a random moment."""

    def __init__(self, kind, seed):
        self.random = np.random.default_rng(seed)
        self.producers, consumers = self.random.integers(1, 4, size=2)
        self.paired = kind == "SimPairedReservoir"
        self.capacity = int(
            self.random.integers(10, 14) if self.paired else self.random.integers(2, 12)
        )
        threshold = 0 if kind == "FIFO" else int(self.random.integers(self.capacity + 1))
        self.buffer = make(kind, self.capacity, threshold, seed=int(seed))
        # Some end before the first put has found room, and others after the last.
        self.operations = int(self.random.integers(1.5 * EACH * self.producers))
        self.counting = threading.Lock()
        seeds = self.random.integers(2**32, size=self.producers + consumers).tolist()
        self.putters = [
            Thread(self.produce, number, seeds.pop()) for number in range(self.producers)
        ]
        self.getters = [Thread(self.consume, seeds.pop()) for _ in range(consumers)]
        self.ender = Thread(self.finish)

    def count(self, operations):
        with self.counting:
            self.operations -= operations

    def produce(self, producer, seed):
        random = np.random.default_rng(seed)
        put = []
        left = list(range(producer * EACH, (producer + 1) * EACH))
        while left:
            chunk, left = np.split(left, [random.integers(1, 2 * self.capacity)])
            chunk = chunk.tolist()
            left = left.tolist()
            timeout = random.choice([None, 0.0, 0.0005])
            try:
                self.buffer.put_many(samples(self.buffer, chunk), timeout=timeout)
            except ReceptionOverError as error:
                return put + chunk[: error.stored]
            except queue.Full as error:
                put = put + chunk[: error.stored]
                left = chunk[error.stored :] + left
                self.count(error.stored)
            else:
                put += chunk
                self.count(len(chunk))
        return put

    def consume(self, seed):
        random = np.random.default_rng(seed)
        got = []
        while True:
            size = int(random.integers(1, self.capacity + 1))
            timeout = random.choice([None, 0.0, 0.0005])
            try:
                came = numbers(self.buffer.get_batch(size, timeout=timeout))
            except BufferDrainedError:
                return got
            except queue.Empty:
                continue
            assert 0 < len(came) <= size * (1 + self.paired)
            assert len(self.buffer) <= self.capacity
            self.count(len(came))
            got += came

    def finish(self):
        def is_over():
            return self.operations <= 0 or not any(putter.is_alive() for putter in self.putters)

        wait_until(is_over, every=0.0005)
        self.buffer.signal_reception_over()

    def results(self):
        put = [number for putter in self.putters for number in putter.result()]
        return put, [number for getter in self.getters for number in getter.result()]


@pytest.mark.parametrize("kind", ALL)
def test_every_sample_is_got_and_no_thread_stays_blocked(kind):
    for seed in range(15):
        schedule = ThreadSchedule(kind, seed)
        buffer = schedule.buffer
        (put, got) = schedule.results()
        times = Counter(got)
        assert len(set(put)) == len(put) == buffer.samples_put
        missing = set(put) - set(got)
        if schedule.paired:  # the last one of a simulation may have no partner
            assert len({number // STEPS for number in missing}) == len(missing) == buffer.unseen
        else:
            assert not missing
            assert len(buffer) == 0
        assert set(got) <= set(put)
        if kind == "FIRO" or kind == "FIFO":
            assert max(times.values(), default=1) == 1
        if kind == "FIFO" and schedule.producers == len(schedule.getters) == 1:
            assert got == put
        expected = np.bincount([times[number] for number in put], minlength=1)
        np.testing.assert_array_equal(
            np.trim_zeros(buffer.repetitions(), "b"), np.trim_zeros(expected, "b")
        )
