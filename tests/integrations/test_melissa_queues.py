"""The queues of ``make_buffer``: a FIFO against ``queue.Queue``, the tasks of all kinds against a
model.
"""

import queue
import threading
import tracemalloc
from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from compss_train import buffers
from compss_train.buffers import BufferDrainedError
from compss_train.integrations import melissa
from tests.buffers.kinds import ALL, STEPS, Thread, make, numbers, sample, samples, until_waiting

CALLS = ["put_nowait", "get_nowait", "task_done"]
EXCEPTIONS = (queue.Empty, queue.Full, ValueError)


def called(queue_like, name, number):
    """Call a method; return its result, or the type of what it raises."""
    try:
        return getattr(queue_like, name)(*([number] if name == "put_nowait" else []))
    except EXCEPTIONS as error:
        return next(kind for kind in EXCEPTIONS if isinstance(error, kind))


@given(capacity=st.integers(1, 4), calls=st.lists(st.sampled_from(CALLS), max_size=60))
def test_a_fifo_is_a_queue(capacity, calls):
    ours = melissa.make_buffer(capacity)
    theirs = queue.Queue(capacity)
    for number, name in enumerate(calls):
        assert called(ours, name, number) == called(theirs, name, number)
        assert [getattr(ours, name)() for name in ("qsize", "empty", "full")] == [
            getattr(theirs, name)() for name in ("qsize", "empty", "full")
        ]
        assert (ours.maxsize, ours.unfinished_tasks) == (theirs.maxsize, theirs.unfinished_tasks)


@pytest.mark.parametrize("kind", ALL)
def test_words_of_a_queue_count_samples(kind):
    made = make(kind, 4, batch_size=2)
    assert (made.maxsize, made.qsize(), made.empty(), made.full()) == (4, 0, True, False)
    with pytest.raises(queue.Empty):
        made.get_nowait()
    for number in range(4):
        made.put_nowait(sample(made, number))
        assert (made.qsize(), made.empty(), made.full()) == (number + 1, False, number == 3)
    with pytest.raises(queue.Full):
        made.put_nowait(sample(made, 4))
    assert set(numbers(made.get_nowait())) <= set(range(4))


class Tasks:
    """A model: what was put, and what each get that is not reported yet has returned for the first
    time.
    """

    def __init__(self):
        self.put = 0
        self.returned = set()
        self.early = 0
        self.gets = deque()
        self.done = 0

    def got(self, numbers):
        new = set(numbers) - self.returned
        self.returned |= new
        early = min(self.early, len(new))
        self.early -= early
        if not early or len(new) > early:
            self.gets.append(len(new) - early)

    def task_done(self):
        if self.gets:
            self.done += self.gets.popleft()
        elif self.done < self.put:
            self.early, self.done = self.early + 1, self.done + 1
        else:
            return ValueError
        return None


def sequence(text):
    """Return calls by their letters, with the size of a batch."""
    names = {"p": "put", "g": "get", "b": "batch", "d": "done", "l": "load"}
    return [(names[letter], 3) for letter in text]


@pytest.mark.parametrize("kind", ALL)
@example(calls=sequence("ppppdbdgd"), capacity=4, passes=1, seed=0)  # reported before a batch
# And before new and repeated samples.
@example(calls=sequence("ppdgggggdddd"), capacity=4, passes=1, seed=0)
# What is loaded was not got.
@example(calls=sequence("ppppggglgggdddd"), capacity=4, passes=1, seed=0)
@given(
    calls=st.lists(
        st.tuples(st.sampled_from(["put", "get", "batch", "done", "load"]), st.integers(1, 4)),
        max_size=60,
    ),
    capacity=st.integers(4, 8),
    passes=st.integers(1, 2),
    seed=st.integers(0, 9),
)
def test_a_sample_is_done_when_it_was_returned_and_reported(kind, calls, capacity, passes, seed):
    made = make(kind, capacity, seed=seed, pseudo_epochs=passes)
    model = Tasks()
    for what, size in [*calls, ("over", 0), *[("batch", 4), ("done", 1)] * 20]:
        try:
            if what == "put":
                made.put_nowait(sample(made, model.put))
                model.put += 1
            elif what in ("get", "batch"):
                model.got(
                    numbers(
                        made.get_nowait() if what == "get" else made.get_batch(size, block=False)
                    )
                )
            elif what == "done":
                assert called(made, "task_done", 0) is model.task_done()
            elif what == "load":
                state = made.state_dict()
                made = made if size % 2 else make(kind, capacity, seed=seed, pseudo_epochs=passes)
                made.load_state_dict(state)
                model.gets.clear()
                model.early, model.done = 0, len(model.returned)
            else:
                made.signal_reception_over()
        except (queue.Empty, queue.Full):
            pass
        if what in ("over", "batch", "done") and made.reception_over and not made.is_ready():
            model.put = len(model.returned)  # others will never be returned
            model.done = min(model.done, model.put)
        assert made.unfinished_tasks == model.put - model.done
    Thread(made.join).result()


# Threads


@pytest.mark.parametrize("kind", ALL)
def test_a_join_waits_until_every_sample_was_returned_and_done(kind):
    made = make(kind, 6, seed=3)
    made.put_many(samples(made, range(4)))
    joining = [Thread(made.join) for _ in range(2)]
    until_waiting(made)
    while made.unseen:
        made.get()
        assert all(each.is_alive() for each in joining)
        made.task_done()
    for each in joining:
        each.result()
    assert made.unfinished_tasks == 0
    with pytest.raises(
        ValueError, match=r"task_done\(\) called too many times: all 4 samples put are done"
    ):
        made.task_done()
    Thread(made.join).result()


def test_a_repetition_that_is_done_first_does_not_end_a_join():
    made = make("Reservoir", 2)
    made.put(0.5)
    made.get()
    joining = Thread(made.join)
    until_waiting(made)
    Thread(lambda: (made.get(), made.task_done())).result()
    assert made.unfinished_tasks == 1
    assert joining.is_alive()
    made.task_done()
    joining.result()
    for _ in range(3):
        made.get()
        assert made.unfinished_tasks == 0
        made.task_done()
    with pytest.raises(ValueError, match="all 1 samples put are done"):
        made.task_done()


@pytest.mark.parametrize("kind", ALL)
def test_one_thread_may_report_what_others_got(kind):
    made = make(kind, 6, seed=1)
    made.put_many(samples(made, range(4)))
    gets = 0
    while made.unseen:
        Thread(made.get).result()
        gets += 1
    for _ in range(gets - 1):
        made.task_done()
        assert made.unfinished_tasks
    made.task_done()
    Thread(made.join).result()


@pytest.mark.parametrize("kind", ["FIFO", "Reservoir"])
def test_programs_that_report_nothing_use_no_memory_for_it(kind):
    made = make(kind, 10, seed=0)
    data = torch.zeros(())  # made once: torch allocates a little for each tensor, and keeps some
    tracemalloc.start()
    for number in range(3000):
        made.put(sample(made, number, data))
        made.get()
        if number == 1000:
            before, _ = tracemalloc.get_traced_memory()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after < before + 10_000
    while made.unseen:
        made.get()
    for _ in range(made.samples_got):
        assert made.unfinished_tasks
        made.task_done()
    assert made.unfinished_tasks == 0
    with pytest.raises(ValueError, match="task_done"):
        made.task_done()


def test_time_steps_without_a_partner_do_not_hold_up_a_join():
    made = make("SimPairedReservoir", 6)
    made.put_many(samples(made, [0, 1, STEPS]))
    made.get()
    made.task_done()
    joining = Thread(made.join)
    until_waiting(made)
    made.signal_reception_over()
    assert made.unfinished_tasks == 1
    made.get()
    joining.result()


@pytest.mark.parametrize("kind", ALL)
def test_after_a_join_every_sample_was_processed(kind):
    for seed in range(4):
        made = make(kind, 12, seed=seed, batch_size=3)
        processed = []
        lock = threading.Lock()

        def produce(first, made=made):
            for number in range(first, first + 4 * STEPS):
                made.put(sample(made, number))

        def consume(made=made, processed=processed, lock=lock):
            while True:
                try:
                    got = numbers(made.get())
                except BufferDrainedError:
                    return
                with lock:
                    processed.extend(got)
                made.task_done()

        producers = [Thread(produce, number * 4 * STEPS) for number in range(3)]
        consumers = [Thread(consume) for _ in range(3)]
        for producer in producers:
            producer.result()
        if kind == "BatchReservoir" or kind == "SimPairedReservoir":
            made.signal_reception_over()  # what is left is less than a batch, or has no partner
        joining = [Thread(made.join) for _ in range(2)]
        for each in joining:
            each.result()
        with lock:
            missing = set(range(12 * STEPS)) - set(processed)
        assert len(missing) == made.unseen
        assert not missing or kind == "SimPairedReservoir"
        made.signal_reception_over()
        for consumer in consumers:
            consumer.result()


def test_a_state_is_that_of_the_buffer_of_the_same_name():
    ours = melissa.make_buffer(4, "Reservoir", 1, seed=0)
    ours.put_many([0.5, 1.5])
    ours.get()
    plain = buffers.Reservoir(4, 1, seed=1)
    plain.load_state_dict(ours.state_dict())
    ours.load_state_dict(plain.state_dict())
    assert [plain.get() for _ in range(20)] == [ours.get() for _ in range(20)]
    np.testing.assert_array_equal(plain.seen_counts(), ours.seen_counts())


def test_each_sample_says_how_often_it_was_seen():
    made = melissa.make_buffer(4, melissa.BufferType.Reservoir, 1, seed=0)
    made.put_many(list("abcd"))
    got = [made.get() for _ in range(30)]
    counts = dict(zip(made.state_dict()["samples"], made.seen_counts().tolist(), strict=True))
    assert counts == {letter: got.count(letter) for letter in "abcd"}
