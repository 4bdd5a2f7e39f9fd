"""The end of reception; late samples are discarded."""

from contextlib import suppress

import pytest
import torch

from compss_train.buffers import BufferDrainedError
from compss_train.net.connection import ConnectionLostError
from tests.buffers.kinds import make
from tests.helpers.waiting import wait_until


@pytest.mark.parametrize("when", ["pending", "later"])
def test_late_samples_of_a_failed_sender_are_ignored(make_stub, when):
    """The fit does not wait for a failed sender: its samples may still arrive after the end of
    reception.
    """
    stub = make_stub(make("FIFO", 2))
    with stub.connect(0) as connection:
        connection.send_all(range(2 if when == "later" else 4))
        wait_until(
            lambda: stub.buffer.samples_put == 2 and (when == "later" or stub.buffer.waiting)
        )
        stub.buffer.signal_reception_over()  # as on the coordinator's command
        if when == "later":
            connection.send_all(range(2, 4))
        with suppress(ConnectionLostError):
            connection.read("ended")  # or an error
    assert stub.receiver.failed is None
    assert stub.receiver.snapshot()[1] == {0: 2}


@pytest.mark.parametrize("how", ["ends", "disconnects", "is rejected"])
def test_reception_ends_when_all_sent_samples_are_put(make_stub, how):
    stub = make_stub(make("FIFO", 2))
    connection = stub.connect(0)
    other = stub.connect(1)
    connection.send_all(range(5))
    wait_until(lambda: stub.buffer.waiting)
    if how == "is rejected":
        connection.send(5, torch.zeros(2))
    for _ in range(2):
        stub.receiver.end_reception()
    other.close()
    assert not stub.buffer.reception_over
    if how == "disconnects":
        connection.close()
    got = [int(stub.buffer.get()["x"]) for _ in range(5)]
    if how == "ends":
        connection.send(5)
        got.append(int(stub.buffer.get()["x"]))
        assert "ended" in connection.end()
    connection.close()
    wait_until(lambda: stub.buffer.reception_over)
    assert got == list(range(len(got)))
    with pytest.raises(BufferDrainedError):
        stub.buffer.get()
    assert stub.receiver.failed is None
