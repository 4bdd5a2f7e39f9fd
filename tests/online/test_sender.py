"""How a sender connects to a fit: addresses, names, tokens, and retries; and what it imports."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from compss_train.exceptions import TrainingEndedError
from compss_train.net.connection import Address
from compss_train.online.sender import SampleSender, open_stream
from compss_train.online.stream import NameInUseError
from tests.buffers.kinds import Thread
from tests.helpers.waiting import LIMIT, wait_until
from tests.net.plain_clients import HERE, TOKEN, no_open_connections
from tests.online.sample_streams import connect_sender, send_all
from tests.online.simulations import free_port
from tests.online.stub_fits import stub_fit

pytestmark = pytest.mark.usefixtures("short_waits")


def open_sender_stream(running, name, sleep):
    """Open the stream of a sender, which calls ``sleep`` between attempts."""
    return open_stream(
        Address(running.coordinator.url, TOKEN), {"role": "sender", "name": name}, 60, sleep=sleep
    )


def test_a_sender_waits_for_the_replacement_of_a_dead_worker():
    with no_open_connections(), stub_fit() as running:
        running.workers[0].close()
        connecting = Thread(connect_sender, running, "solver")
        running.coordinator.wait_for("role")
        running.coordinator.set_url(0, None)
        running.replace(0)
        with connecting.result() as sender:
            send_all(sender, range(3))
        assert running.coordinator.wait_for("finished") == [3]
        wait_until(lambda: running.coordinator.call(lambda: running.coordinator.senders.all_ended))


def test_a_missing_fit_raises_after_the_timeout():
    port = free_port()
    with (
        no_open_connections(),
        pytest.raises(
            ConnectionRefusedError, match=(f"no fit listens at tcp://{HERE}:{port}; start")
        ),
    ):
        SampleSender(f"tcp://{HERE}:{port}", TOKEN, timeout=0)


def test_rejected_senders_get_the_reason():
    with no_open_connections(), stub_fit(senders=1) as running:
        with pytest.raises(PermissionError, match=f"{HERE}:.*the token is not the server's"):
            SampleSender(running.coordinator.url, TOKEN + "x")
        with connect_sender(running, "solver") as first:
            with pytest.raises(
                PermissionError, match="another program sends as 'solver'"
            ) as raised:
                connect_sender(running, "solver", timeout=0)
            assert isinstance(raised.value, NameInUseError)
            first.send(1.0)
        assert running.workers[0].drain() == [1]


def test_a_closed_sender_says_so():
    with no_open_connections(), stub_fit() as running:
        with connect_sender(running) as sender:
            sender.send(1.0)
        with pytest.raises(ValueError, match="this sender was closed, and its stream is complete"):
            sender.send(2.0)
        assert running.coordinator.wait_for("finished") == [1]


def test_late_senders_are_rejected():
    with no_open_connections(), stub_fit() as running:
        running.coordinator.senders.closed = True
        with pytest.raises(TrainingEndedError, match="no more samples are accepted"):
            connect_sender(running)


@pytest.mark.parametrize("how", ["ends", "disconnects"])
def test_a_sender_waits_until_its_name_is_free(how):
    with no_open_connections(), stub_fit() as running:
        first = connect_sender(running, "solver")
        waits = []
        first.send(1.0)
        wait_until(lambda: running.workers[0].buffer.samples_put == 1)

        def wait(seconds):
            waits.append(seconds)
            if len(waits) == 3:
                first.close() if how == "ends" else first.stream.close()

        with open_sender_stream(running, "solver", wait) as again:
            assert (len(waits) >= 3, again.delivered) == (True, 1)
            again.skip(1)
            again.finish()
        assert running.coordinator.wait_for("finished")[-1] == 1


@pytest.mark.parametrize(
    "address", ["localhost:5555", "tcp://localhost", "tcp://*:5555", "tcp://host:65536", 5]
)
def test_invalid_addresses_raise(address):
    with pytest.raises(ValueError, match=r"address=.*: give tcp://HOST:PORT"):
        SampleSender(address, TOKEN)


@pytest.mark.parametrize("timeout", [-1, "60"])
def test_invalid_timeouts_raise(timeout):
    with pytest.raises(ValueError, match=r"timeout=.*: give a number of at least 0"):
        SampleSender("tcp://localhost:5555", TOKEN, timeout=timeout)


def test_the_sender_of_a_job_connects_by_its_environment(monkeypatch, raises):
    with raises(ValueError, "address"):
        SampleSender()
    with stub_fit() as running:
        monkeypatch.setenv("COMPSS_TRAIN_ADDRESS", running.coordinator.url)
        with raises(ValueError, "token"):
            SampleSender()
        monkeypatch.setenv("COMPSS_TRAIN_TOKEN", TOKEN)
        monkeypatch.setenv("COMPSS_TRAIN_NAME", "simulation-000003-0123abcd")
        with SampleSender() as sender:
            send_all(sender, range(3))
        assert running.coordinator.wait_for("name") == ["simulation-000003-0123abcd"]
        with SampleSender(running.coordinator.url) as sender:  # another fit: no name of the job
            send_all(sender, range(3))
        assert running.coordinator.wait_for("name", 2)[1] is None


def test_a_sender_says_that_it_makes_progress_if_the_coordinator_wants_to_know():
    with stub_fit(capacity=2) as running:
        router = running.coordinator.router
        register = router.register
        router.register = lambda client, stream: register(client, stream, progress=0.05)
        sender = connect_sender(running, "solver")
        sending = Thread(send_all, sender, range(1000))
        running.coordinator.wait_for("progress", 3)  # while the buffer is full
        running.coordinator.broadcast({"stop": True})
        with pytest.raises(TrainingEndedError):
            sending.result()
        with pytest.raises(TrainingEndedError):
            sender.close()


PROGRAM = """
import sys
import numpy as np
from compss_train import SampleSender, Solver
x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
with SampleSender(sys.argv[1], sys.argv[2], name="solver") as sender:
    sender.skip(sender.delivered)
    sender.send(x.T, np.uint16(7), step=0)
    sender.send(np.asfortranarray(x.T), x[1, 2].astype(np.uint16) + np.uint16(2), step=1)
    assert "torch" not in sys.modules
    sender.send([[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]], np.int32(7), step=2)
assert "torch" in sys.modules
"""


def test_a_program_that_sends_arrays_imports_no_torch():
    with stub_fit() as running:
        program = [sys.executable, "-c", PROGRAM, running.coordinator.url, TOKEN]
        subprocess.run(program, check=True, timeout=LIMIT)
        assert running.coordinator.wait_for("finished") == [3]
        batch = running.workers[0].buffer.get_batch(3)
    assert torch.equal(batch["x"], torch.arange(6.0).reshape(2, 3).T.expand(3, 3, 2))
    assert torch.equal(batch["y"], torch.full((3,), 7, dtype=torch.int32))


def test_tensors_of_all_kinds_arrive_as_arrays_do():
    x = torch.arange(6.0).reshape(2, 3)
    kinds = [x.T, torch.nn.Parameter(x.T), x.T.numpy(), np.asfortranarray(x.T.numpy())]
    with stub_fit() as running, connect_sender(running) as sender:
        for kind in kinds:
            sender.send(kind)
        sender.close()
        batch = running.workers[0].buffer.get_batch(len(kinds))
    assert torch.equal(batch["x"], x.T.expand(len(kinds), 3, 2))


@pytest.mark.parametrize(
    "x", [(np.ones(2), np.zeros(2)), [np.ones(2), 1.0], [torch.ones(2), torch.ones(2)]]
)
def test_x_and_y_in_one_argument_are_an_error_and_do_not_count(x):
    with no_open_connections(), stub_fit() as running:
        with connect_sender(running) as sender:
            with pytest.raises(TypeError, match=r"x and y or x alone: call send\(x, y\)"):
                sender.send(x)
            sender.send([1.0, 2.0])
        assert running.coordinator.wait_for("finished") == [1]
