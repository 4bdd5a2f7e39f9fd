"""The end of streams: by their sender, with the training, or by a rejected sample."""

from contextlib import suppress

import pytest
import torch

from compss_train.buffers import BufferFullError
from compss_train.exceptions import TrainingEndedError
from tests.buffers.kinds import STEPS, Thread
from tests.helpers.waiting import wait_until
from tests.net.plain_clients import no_open_connections
from tests.online.sample_streams import connect_sender, send_all, send_repeatedly
from tests.online.stub_fits import END_TRAINING, stub_fit

pytestmark = pytest.mark.usefixtures("short_waits")


def test_a_failed_sender_is_warned_of_and_expected_again_by_name():
    with stub_fit(senders=2) as running:
        coordinator = running.coordinator
        for name in ("solver", None):
            sender = connect_sender(running, name)
            send_all(sender, range(3))
            with pytest.raises(ZeroDivisionError), sender:
                raise ZeroDivisionError("my fault")
            sender.close()
        coordinator.wait_for_disconnects(2)
        assert coordinator.warnings[0].startswith(
            "sender 'solver' has failed and may reconnect: Traceback"
        )
        assert coordinator.warnings[1].startswith("a sender has failed: Traceback")
        assert coordinator.senders.failure.summary == (
            "a sender has failed: ZeroDivisionError: my fault"
        )
        assert coordinator.call(coordinator.senders.counts) == {
            "running": 0,
            "done": 0,
            "failed": 1,
        }
        assert all("ZeroDivisionError: my fault" in warned for warned in coordinator.warnings)
        assert not coordinator.call(lambda: coordinator.senders.all_ended)
        connect_sender(running, "solver").close()
        coordinator.wait_for("finished")
        assert coordinator.call(lambda: coordinator.senders.all_ended)


def test_a_disconnected_sender_can_reconnect():
    with stub_fit() as running:
        sender = connect_sender(running, "solver")
        sender.send(1.0)
        sender.stream.close()
        running.coordinator.wait_for_disconnects()
        assert (
            "'solver' has failed and may reconnect: it disconnected without an error"
            in running.coordinator.warnings[0]
        )
        with connect_sender(running, "solver") as again:
            again.send(1.0)
        assert running.workers[0].buffer.samples_put == 1


@pytest.mark.parametrize("end", END_TRAINING)
@pytest.mark.parametrize("workers", [1, 2])
def test_the_end_of_training_raises_in_the_sender_and_is_no_failure(end, workers):
    with no_open_connections(), stub_fit(workers, senders=2) as running:
        senders = [connect_sender(running) for _ in range(2)]
        senders[0].send(1.0)
        END_TRAINING[end](running)
        for sender in senders:
            wait_until(lambda stream=sender.stream: stream.update() or stream.ended.is_set())
        with pytest.raises(TrainingEndedError, match="no more samples are accepted"):
            senders[0].send(2.0)
        with pytest.raises(TrainingEndedError, match="no more samples are accepted"), senders[0]:
            senders[0].send(2.0)
        with pytest.raises(TrainingEndedError):
            senders[1].close()
        senders[1].close()
        assert running.coordinator.received("failed") == []


@pytest.mark.parametrize("end", END_TRAINING)
def test_the_end_of_training_unblocks_a_send(end):
    with stub_fit(capacity=2) as running:
        sender = connect_sender(running)
        blocked = Thread(lambda: [sender.send(torch.zeros(2**18)) for _ in range(20)])
        wait_until(lambda: running.workers[0].buffer.waiting)
        assert blocked.is_alive()
        END_TRAINING[end](running)
        with pytest.raises(TrainingEndedError):
            blocked.result()
        sender.stream.close()


def test_a_sample_of_another_shape_is_rejected_with_the_buffers_reason():
    with stub_fit() as running:
        sender = connect_sender(running)
        sender.send(torch.zeros(2))
        with pytest.raises(
            ValueError,
            match=r"rejected a sample: sample 1 has x: float32 \(3,\), where .* x: float32 \(2,\)",
        ):
            send_repeatedly(sender.send, torch.zeros(3))
        sender.stream.close()
        with connect_sender(running) as other:
            other.send(torch.zeros(2))
        assert running.workers[0].buffer.samples_put == 2
        assert running.workers[0].receiver.failed is None  # the sample's failure, not the worker's


@pytest.mark.parametrize(
    ("step", "reason"), [(None, "step"), (STEPS, "step"), (0, ("twice|held already"))]
)
def test_a_rejection_is_raised_on_close_and_reported_to_the_fit(step, reason):
    with stub_fit(2, paired=True) as running:
        sender = connect_sender(running, "solver")
        sender.send(torch.zeros(2), step=0)
        with suppress(ValueError):  # the rejection may arrive at once
            sender.send(torch.zeros(2), step=step)
        with pytest.raises(ValueError, match=f"a worker rejected a sample: .*({reason})"):
            sender.close()
        running.coordinator.wait_for_disconnects()
        said = "sender 'solver' has failed and may reconnect: a worker rejected a sample: "
        assert running.coordinator.warnings[0].startswith(said)


def test_a_buffer_that_stays_full_raises_in_the_sender():
    with stub_fit(paired=True, capacity=2, senders=3) as running:
        senders = [connect_sender(running) for _ in range(3)]
        for sender in senders[:2]:
            sender.send(1.0, step=0)
            sender.close()
        with suppress(ValueError):  # the rejection may arrive at once
            senders[2].send(1.0, step=0)
        closing = Thread(senders[2].close)
        try:
            with pytest.raises(ValueError, match="use a capacity above"):
                closing.result()
            # Not the sample's failure: it ends the fit, too.
            assert isinstance(running.workers[0].receiver.failed, BufferFullError)
        finally:
            running.coordinator.close()
            senders[2].stream.close()
