"""The end of reception; late samples are discarded."""

from contextlib import suppress

import pytest
import torch

from compss_train.buffers import BufferDrainedError
from compss_train.net.connection import ConnectionLostError
from tests.buffers.kinds import Thread, make, until
from tests.net.plain_clients import PlainClient, no_threads_left, raw_socket
from tests.online.sample_streams import send_stream
from tests.online.stub_fits import StubWorker


@pytest.mark.parametrize("when", ["pending", "later"])
def test_late_samples_of_a_failed_sender_are_ignored(make_stub, when):
    """The fit does not wait for a failed sender: its samples may still arrive after the end of reception."""
    stub = make_stub(make("FIFO", 2))
    with stub.connect(0) as connection:
        connection.send_all(range(2 if when == "later" else 4))
        until(lambda: stub.buffer.samples_put == 2 and (when == "later" or stub.buffer._waiting))
        stub.buffer.signal_reception_over()  # as on the coordinator's command
        if when == "later":
            connection.send_all(range(2, 4))
        with suppress(ConnectionLostError):
            connection.read("ended")  # or an error
    assert stub.receiver.failed is None
    assert stub.receiver.snapshot()[1] == {0: 2}


def test_reception_ends_at_once_without_streams(make_stub):
    stub = make_stub(make("FIFO", 9), address="tcp://127.0.0.1:*")
    send_stream(stub, 0, 2)
    with raw_socket(stub.url), PlainClient(stub.url, "other"):
        stub.receiver.end_reception()
        until(lambda: stub.buffer._reception_over)  # it does not wait for unauthenticated clients


@pytest.mark.parametrize("how", ["ends", "disconnects", "is rejected"])
def test_reception_ends_when_all_sent_samples_are_put(make_stub, how):
    stub = make_stub(make("FIFO", 2))
    connection, other = stub.connect(0), stub.connect(1)
    connection.send_all(range(5))
    until(lambda: stub.buffer._waiting)
    if how == "is rejected":
        connection.send(5, torch.zeros(2))
    for _ in range(2):
        stub.receiver.end_reception()
    other.close()
    assert not stub.buffer._reception_over
    if how == "disconnects":
        connection.close()
    got = [int(stub.buffer.get()[0]) for _ in range(5)]
    if how == "ends":
        connection.send(5)
        got.append(int(stub.buffer.get()[0]))
        assert "ended" in connection.end()
    connection.close()
    until(lambda: stub.buffer._reception_over)
    assert got == list(range(len(got)))
    with pytest.raises(BufferDrainedError):
        stub.buffer.get()
    assert stub.receiver.failed is None


def test_reception_does_not_wait_for_idle_connections(make_stub):
    """The documented protocol does not require it to disconnect."""
    stub = make_stub(make("FIFO", 9))
    with stub.connect(0) as connection:
        connection.send_all(range(3))
        assert "ended" in connection.end()
        stub.receiver.end_reception()
        until(lambda: stub.buffer._reception_over)
    assert stub.drain() == [0, 1, 2]


def test_samples_after_the_end_of_training_are_discarded(make_stub):
    stub = make_stub(make("FIFO", 2))
    with stub.connect(0) as connection:
        sending = Thread(connection.send_all, range(1000))
        until(lambda: stub.buffer._waiting)
        stub.receiver.discard()
        sending.result()
        assert "ended" in connection.end()
    assert stub.buffer.samples_put == 2
    assert stub.receiver.snapshot()[1] == {0: 2}


def test_close_unblocks_a_pending_put_and_ends_all_threads():
    with no_threads_left():
        stub = StubWorker(make("FIFO", 1))
        waiting, silent = stub.connect(0), stub.connect(1)
        waiting.send_all(range(3))
        until(lambda: stub.buffer._waiting)
        stub.receiver.close()
        stub.receiver.close()
        with silent, waiting, pytest.raises(ConnectionLostError):
            silent.read("ended")
        with pytest.raises(OSError):
            stub.connect(2)
