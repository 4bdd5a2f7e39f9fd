"""The end of receiving: when it is over, and what comes too late is taken and forgotten."""

from contextlib import suppress

import pytest
import torch

from compss_train.buffers import BufferDrainedError
from compss_train.online.connection import Address, ConnectionLostError
from tests.buffers.kinds import Thread, make, until
from tests.online.parts import HERE, Place, bare, nothing_left
from tests.online.sending import finish, run, send


@pytest.mark.parametrize("when", ["waits", "comes"])
def test_samples_of_one_who_was_given_up_come_too_late_and_do_no_harm(places, when):
    """Nobody waits for a sender that has failed: what it has sent may still be there when reception is over."""
    place = places(make("FIFO", 2))
    connection, _ = place.hello(0)
    with connection:
        send(connection, 0, range(2 if when == "comes" else 4))
        until(lambda: place.buffer.samples_put == 2 and (when == "comes" or place.buffer._room_made._waiters))
        place.buffer.signal_reception_over()  # as the coordinator has it do
        if when == "comes":
            send(connection, 0, range(2, 4))
        with suppress(ConnectionLostError):
            connection.receive()  # it may be told what it is
    assert place.failures == []
    assert place.receiver.snapshot()[1] == {0: 2}


def test_reception_is_over_at_once_where_nobody_sends(places):
    place = places(make("FIFO", 9))
    run(place, 0, 2)
    with bare(place.port), Address(HERE, place.port, "other").connect({"hello": "samples", "stream": 1}):
        place.receiver.over()
        until(lambda: place.buffer._over)  # strangers are not waited for


@pytest.mark.parametrize("how", ["ends", "is gone", "is refused"])
def test_reception_is_over_when_what_was_sent_is_there(places, how):
    place = places(make("FIFO", 2))
    connection, _ = place.hello(0)
    other, _ = place.hello(1)
    send(connection, 0, range(5))
    until(lambda: place.buffer._room_made._waiters)
    if how == "is refused":
        connection.send({"sample": 5}, [torch.zeros(2)])
    for _ in range(2):
        place.receiver.over()
    other.close()
    assert not place.buffer._over
    if how == "is gone":
        connection.close()
    got = [int(place.buffer.get()[0]) for _ in range(5)]
    if how == "ends":
        send(connection, 0, [5])
        got.append(int(place.buffer.get()[0]))
        assert "ended" in finish(connection)
    connection.close()
    until(lambda: place.buffer._over)
    assert got == list(range(len(got)))
    with pytest.raises(BufferDrainedError):
        place.buffer.get()
    assert place.failures == []


def test_one_that_has_said_the_end_and_stays_is_not_waited_for(places):
    """Nothing in the documented messages says that it has to leave."""
    place = places(make("FIFO", 9))
    connection, _ = place.hello(0)
    with connection:
        send(connection, 0, range(3))
        assert "ended" in finish(connection)
        place.receiver.over()
        connection._socket.settimeout(1)
        with suppress(ConnectionLostError):
            assert "ended" in finish(connection)
        assert place.buffer._over
    assert place.drained() == [0, 1, 2]


def test_what_comes_after_the_end_of_training_is_taken_and_forgotten(places):
    place = places(make("FIFO", 2))
    connection, _ = place.hello(0)
    with connection:
        sending = Thread(send, connection, 0, range(1000))
        until(lambda: place.buffer._room_made._waiters)
        place.receiver.discard()
        sending.result()
        assert "ended" in finish(connection)
    assert place.buffer.samples_put == 2
    assert place.receiver.snapshot()[1] == {0: 2}


def test_closing_ends_all_threads_also_one_that_waits_for_room():
    with nothing_left():
        place = Place(make("FIFO", 1))
        waiting, _ = place.hello(0)
        silent, _ = place.hello(1)
        send(waiting, 0, range(3))
        until(lambda: place.buffer._room_made._waiters)
        place.receiver.close()
        place.receiver.close()
        with silent, waiting, pytest.raises(ConnectionLostError):
            silent.receive()
        with pytest.raises(OSError):
            place.hello(2)
