"""Buffers of every kind, numbered samples, and threads."""

import threading

import torch

from compss_train.buffers import BufferDrainedError, BufferFullError, SimPairedReservoir, TimeStep
from compss_train.integrations.melissa import make_buffer
from tests.helpers.waiting import LIMIT, wait_until

PLAIN = ("FIFO", "FIRO", "Reservoir", "BatchReservoir")
ALL = (*PLAIN, "SimPairedReservoir")
STEPS = 8


def make(kind, capacity, threshold=0, *, seed=0, batch_size=2, steps=STEPS, pseudo_epochs=None):
    return make_buffer(
        capacity,
        kind,
        threshold,
        pseudo_epochs=pseudo_epochs,
        batch_size=batch_size,
        sweep_size=1000,
        nb_time_steps=steps,
        seed=seed,
    )


def sample(buffer, number, data=None):
    """Return sample ``number``; a simulation's time steps have successive numbers."""
    data = torch.tensor(number) if data is None else data
    return (
        TimeStep(number // STEPS, number % STEPS, data)
        if isinstance(buffer, SimPairedReservoir)
        else data
    )


def samples(buffer, numbers):
    return [sample(buffer, number) for number in numbers]


def numbers(got):
    """Return the numbers of all samples that a get returned, also those that a receiver put."""
    if isinstance(got, dict):
        return numbers(got["x"])
    if isinstance(got, tuple):
        return [number for part in got for number in numbers(part.data)]
    return torch.as_tensor(got).reshape(-1).tolist()


def uses_of(buffer):
    """Return how often each simulation that a ``SimPairedReservoir`` has seen was in a pair."""
    numbers, _, uses = buffer.state_dict()["simulations"]
    return dict(zip(numbers, uses, strict=True))


def put_some(buffer, wanted):
    """Put as many samples as fit without waiting; return how many."""
    try:
        buffer.put_many(samples(buffer, wanted), block=False)
    except BufferFullError as error:
        return error.stored
    return len(wanted)


def drain(get):
    """Return the results of ``get`` until the buffer is drained."""
    got = []
    while True:
        try:
            got.append(get())
        except BufferDrainedError:
            return got


class Thread(threading.Thread):
    """A thread that keeps what its function returned or raised."""

    def __init__(self, function, *args, **options):
        super().__init__(daemon=True)
        self._call = lambda: function(*args, **options)
        self._returned = self._raised = None
        self.start()

    def run(self):
        try:
            self._returned = self._call()
        except BaseException as error:
            self._raised = error

    def result(self):
        """Return the result or raise the exception; fail if the thread does not end."""
        self.join(LIMIT)
        assert not self.is_alive(), "the thread is blocked"
        if self._raised is not None:
            raise self._raised
        return self._returned


def reading_threads():
    return [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith(("read-ahead", "fill-buffer"))
    ]


def assert_threads_end():
    for thread in reading_threads():
        thread.join(LIMIT)
    assert not reading_threads()


def until_waiting(buffer):
    """Wait until a thread waits."""
    wait_until(lambda: buffer.waiting)
