"""Streams of numbered samples: of senders, of simulations, and message by message to a worker."""

import numpy as np
import torch

from compss_train._utils import Closable
from compss_train.net.connection import Address
from compss_train.online.routing import Routing
from compss_train.online.sender import SampleSender
from compss_train.online.simulation_task import _interrupt
from compss_train.online.stream import Stream
from tests.buffers.kinds import STEPS
from tests.helpers.waiting import LIMIT
from tests.net.plain_clients import KEYS, TOKEN


def number_sample(number):
    """Return a sample of one number."""
    return (torch.tensor([float(number)]),)


def expected_samples(number, samples, workers, *, whole=False):
    """Return for each worker the samples of a stream that are routed to it."""
    routing = Routing(workers, whole)
    routed = [routing.worker_of(number, sample) for sample in range(samples)]
    return [[n for n in range(samples) if routed[n] == worker] for worker in range(workers)]


class BreakableSender(SampleSender):
    """A sender whose connections a test can break."""

    @property
    def stream(self):
        return self._stream


def connect_sender(running, name=None, **options):
    return BreakableSender(running.coordinator.url, TOKEN, name, **options)


def send_from_one_memory(sender, length, with_step, workers):
    """Send numbers in a memory that is used again at once; return each worker's, with time steps.

    Without a step of its own, a sample has its number.
    """
    memory = np.zeros(length, np.float32)
    expected = [[] for _ in range(workers)]
    for number, has_step in enumerate(with_step):
        memory[:] = number
        sender.send(memory, np.int64(-number), step=9 + number if has_step else None)
        memory[:] = -1
        expected[number % workers].append((number, 9 + number if has_step else number))
    return expected


def send_all(sender, numbers, *, paired=False):
    for number in numbers:
        sender.send(*number_sample(number), step=number % STEPS if paired else None)


def send_repeatedly(send, *sample):
    for _ in range(10_000):
        send(*sample)


def simulation_stream(coordinator, number):
    """Return the stream of a simulation, connected to the workers."""
    opened = Stream(coordinator.address, {"role": "simulation", "number": number}, _interrupt)
    opened.open()
    return opened


class SampleConnection(Closable):
    """A connection to a worker, message by message; a sample waits for credit."""

    def __init__(self, url, stream):
        greeting = {"stream": stream, "stream_key": KEYS.of(stream)}
        self.connection = Address(url, KEYS.token).connect(greeting)
        self.stream = stream
        self.credit = 0
        self.offset = self.read("next")["next"]

    def read(self, name):
        """Return the next reply with this field, or an error."""
        while True:
            header, _ = self.connection.receive(LIMIT)
            self.credit += header.get("credit", 0)
            if {name, "error"} & header.keys():
                return header

    def send(self, number, *arrays, **fields):
        while not self.credit:
            assert "error" not in self.read("credit")
        self.credit -= 1
        self.connection.send(
            {"sample": number, **fields}, arrays or number_sample(100 * self.stream + number)
        )

    def send_all(self, samples, *, paired=False):
        for number in samples:
            self.send(number, **({"step": number} if paired else {}))

    def send_together(self, samples, **fields):
        """Send successive samples of this worker in one message."""
        while self.credit < len(samples):
            assert "error" not in self.read("credit")
        self.credit -= len(samples)
        values = [[100.0 * self.stream + number] for number in samples]
        header = {"sample": samples[0], "count": len(samples), **fields}
        self.connection.send(header, [np.array(values, np.float32)])

    def end(self):
        self.connection.send({"end": True})
        return self.read("ended")

    def close(self):
        self.connection.close()


def send_stream(stub, stream, samples, *, paired=False):
    """Send what a worker has not received of a stream, from its start."""
    with stub.connect(stream) as connection:
        connection.send_all(range(connection.offset, samples), paired=paired)
        assert "ended" in connection.end()
