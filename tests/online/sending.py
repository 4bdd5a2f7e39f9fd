"""Being a stream of samples, by hand, to a worker that only receives."""

from tests.online.parts import value


def finish(connection):
    connection.send({"end": True})
    return connection.receive()[0]


def send(connection, stream, samples, *, paired=False):
    for number in samples:
        step = {"step": number} if paired else {}
        connection.send({"sample": number, **step}, value(100 * stream + number))


def run(place, stream, samples, *, paired=False):
    """Be a stream that runs from its start, sending what the worker has not."""
    connection, upto = place.hello(stream)
    with connection:
        send(connection, stream, range(upto, samples), paired=paired)
        assert "ended" in finish(connection)
