"""Streams of numbered samples: of senders, of simulations, and message by message to a worker."""

import torch

from compss_train.online.sender import SampleSender
from compss_train.online.stream import Stream, route
from tests.buffers.kinds import STEPS
from tests.online.bare_connections import TOKEN


def number_sample(number):
    """Return a sample of one number."""
    return (torch.tensor([float(number)]),)


def expected_samples(number, samples, workers, *, whole=False):
    """Return for each worker the samples of a stream that are routed to it."""
    routed = [route(number, sample, workers, whole=whole) for sample in range(samples)]
    return [[n for n in range(samples) if routed[n] == worker] for worker in range(workers)]


def connect_sender(running, name=None, **options):
    return SampleSender(running.coordinator.url, TOKEN, name, **options)


def send_all(sender, numbers, *, paired=False):
    for number in numbers:
        sender.send(*number_sample(number), step=number % STEPS if paired else None)


def send_repeatedly(send, *sample):
    for _ in range(10_000):
        send(*sample)


def simulation_stream(coordinator, number):
    """Return the stream of a simulation, connected to the workers."""
    opened = Stream(coordinator.address, {"role": "simulation", "number": number})
    opened.open()
    return opened


def send_messages(connection, stream, samples, *, paired=False):
    for number in samples:
        step = {"step": number} if paired else {}
        connection.send({"sample": number, **step}, number_sample(100 * stream + number))


def end_stream(connection):
    connection.send({"end": True})
    return connection.receive()[0]


def send_stream(stub, stream, samples, *, paired=False):
    """Send what a worker has not received of a stream, from its start."""
    connection, offset = stub.connect(stream)
    with connection:
        send_messages(connection, stream, range(offset, samples), paired=paired)
        assert "ended" in end_stream(connection)
