"""What tests of streams share: senders, whose turn it is, and the ends of training."""

from contextlib import contextmanager

import pytest

from compss_train.online.connection import Connection
from compss_train.online.sender import SampleSender
from compss_train.online.stream import worker_of
from tests.buffers.kinds import STEPS, until
from tests.online.parts import TOKEN, value


@contextmanager
def nothing_open():
    """Check that every connection that is made in the block is closed."""
    made, init = [], Connection.__init__

    def keep(connection, sock):
        made.append(sock)
        init(connection, sock)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "__init__", keep)
        yield
    until(lambda: all(sock.fileno() == -1 for sock in made))


def connect(running, name=None, **options):
    return SampleSender(running.coordinator.url, TOKEN, name, **options)


def send_all(sender, numbers, *, paired=False):
    for number in numbers:
        sender.send(*value(number), step=number % STEPS if paired else None)


def send_on(send, *sample):
    for _ in range(10_000):
        send(*sample)


def turns(number, samples, workers, *, whole=False):
    """Return for each worker the samples of a stream that it should get."""
    dealt = [worker_of(number, sample, workers, whole=whole) for sample in range(samples)]
    return [[n for n in range(samples) if dealt[n] == worker] for worker in range(workers)]


ENDS = {
    "stop": lambda running: running.coordinator.tell_all({"stop": True}),
    "senders' stop": lambda running: running.coordinator.do(running.coordinator.senders.stop),
    "close": lambda running: running.coordinator.director.close(),
    "all": lambda running: [running.coordinator.director.close(), *(place.die() for place in running.places)],
}
