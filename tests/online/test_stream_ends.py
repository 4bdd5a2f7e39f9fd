"""Streams of samples that end: by their sender, with the training, or because a sample is refused."""

from contextlib import suppress

import pytest
import torch

from compss_train.buffers import BufferFullError
from compss_train.exceptions import TrainingEndedError
from tests.buffers.kinds import DEADLINE, STEPS, Hold, Thread, until
from tests.online.parts import fit, stream, value
from tests.online.streams import ENDS, connect, nothing_open, send_all, send_on

pytestmark = pytest.mark.usefixtures("short_waits")


def test_a_sender_that_fails_is_told_and_with_a_name_waited_for():
    with fit(senders=2) as running:
        coordinator = running.coordinator
        for name in ("solver", None):
            sender = connect(running, name)
            send_all(sender, range(3))
            with pytest.raises(ZeroDivisionError), sender:
                raise ZeroDivisionError("my fault")
            sender.close()
        coordinator.until_left(2)
        assert coordinator.warned[0].startswith("sender 'solver' has failed, and is waited for: Traceback")
        assert coordinator.warned[1].startswith("a sender has failed: Traceback")
        assert all("ZeroDivisionError: my fault" in warned for warned in coordinator.warned)
        assert not coordinator.do(lambda: coordinator.senders.all_ended)
        connect(running, "solver").close()
        coordinator.until_heard("finished")
        assert coordinator.do(lambda: coordinator.senders.all_ended)


def test_a_sender_that_is_gone_without_a_word_can_come_back():
    with fit() as running:
        sender = connect(running, "solver")
        sender.send(1.0)
        sender._stream.close()
        running.coordinator.until_left()
        assert "'solver' has failed, and is waited for: it is gone without a word" in running.coordinator.warned[0]
        with connect(running, "solver") as again:
            again.send(1.0)
        assert running.places[0].buffer.samples_put == 1


def test_a_sender_that_has_ended_and_begins_again_is_waited_for_again():
    with fit(senders=1) as running:
        coordinator = running.coordinator
        connect(running, "solver").close()
        coordinator.until_heard("finished")
        assert coordinator.do(lambda: coordinator.senders.all_ended)
        again = connect(running, "solver")
        assert not coordinator.do(lambda: coordinator.senders.all_ended)
        again._stream.close()
        coordinator.until_left(2)
        assert not coordinator.do(lambda: coordinator.senders.all_ended)
        connect(running, "solver").close()
        coordinator.until_heard("finished", 2)
        with connect(running):
            assert not coordinator.do(lambda: coordinator.senders.all_ended)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("workers", [1, 2])
def test_when_training_ends_a_sender_learns_it(end, workers):
    with fit(workers) as running:
        sender = connect(running)
        sender.send(1.0)
        ENDS[end](running)
        assert sender._stream.ended.wait(DEADLINE)
        for _ in range(2):
            with pytest.raises(TrainingEndedError, match="no more samples are wanted"):
                sender.send(2.0)
        with pytest.raises(TrainingEndedError):
            sender.close()
        sender.close()


def test_a_sender_that_cannot_end_well_leaves_nothing_open():
    with nothing_open(), fit() as running:
        sender = connect(running)
        running.coordinator.director.close()
        assert sender._stream.ended.wait(DEADLINE)
        with pytest.raises(TrainingEndedError):
            sender.close()


@pytest.mark.parametrize("end", ENDS)
def test_when_training_ends_a_send_that_waits_ends(end):
    with fit(capacity=2, small=True) as running:
        sender = connect(running)
        blocked = Thread(lambda: [sender.send(torch.zeros(2**18)) for _ in range(20)])
        until(lambda: running.places[0].buffer._room_made._waiters)
        assert blocked.is_alive()
        ENDS[end](running)
        with pytest.raises(TrainingEndedError):
            blocked.result()
        sender._stream.close()


@pytest.mark.parametrize("end", ["stop", "senders' stop", "close"])
def test_when_training_ends_a_sender_that_waits_for_its_samples_to_arrive_ends(end):
    with fit(capacity=1) as running:
        sender = connect(running)
        send_all(sender, range(3))
        closing = Thread(sender.close)
        until(lambda: running.places[0].buffer._room_made._waiters)
        ENDS[end](running)
        with pytest.raises(TrainingEndedError):
            closing.result()
        sender._stream.close()


def test_training_may_end_between_a_send_and_the_look_for_its_answer():
    with fit() as running, stream(running.coordinator, 0) as opened:
        hold = Hold(opened._workers[0], "has_message")
        sent = Thread(opened.send, value(1), None)
        hold.entered()
        running.coordinator.director.close()
        opened._watcher.join(DEADLINE)
        hold.release()
        with suppress(TrainingEndedError):
            sent.result()


def test_leaving_the_context_by_the_end_of_training_says_nothing_more():
    with fit() as running:
        sender = connect(running)
        running.coordinator.director.close()
        assert sender._stream.ended.wait(DEADLINE)
        with pytest.raises(TrainingEndedError), sender:
            sender.send(1.0)
        assert running.coordinator.headers("failed") == []


def test_a_sample_of_another_shape_is_refused_with_the_buffers_reason():
    with fit() as running:
        sender = connect(running)
        sender.send(torch.zeros(2))
        with pytest.raises(ValueError, match=r"a worker has refused a sample: .*a buffer stacks samples"):
            send_on(sender.send, torch.zeros(3))
        sender._stream.close()
        with connect(running) as other:
            other.send(torch.zeros(2))
        assert running.places[0].buffer.samples_put == 2
        assert running.places[0].failures == []  # a sample's fault, not the worker's


def test_who_was_refused_a_sample_is_told_so_again_however_it_goes_on():
    with fit(2) as running:
        sender = connect(running)
        for _ in range(2):
            sender.send(torch.zeros(2))
        with suppress(ValueError):  # it may be known at once
            sender.send(torch.zeros(3))
        for _ in range(3):
            with pytest.raises(ValueError, match=r"a worker has refused a sample: .*a buffer stacks samples"):
                send_on(sender.send, torch.zeros(2))  # none of which is at fault, nor all go to that worker
        with pytest.raises(ValueError, match=r"a worker has refused a sample: .*a buffer stacks samples"):
            sender.close()
        running.coordinator.until_left()
        assert running.coordinator.headers("finished") == []


@pytest.mark.parametrize(("step", "reason"), [(None, "step"), (STEPS, "step"), (0, "there twice|held already")])
def test_a_refused_sample_is_told_when_the_sender_ends_and_the_fit_learns_that_it_has(step, reason):
    with fit(2, paired=True) as running:
        sender = connect(running, "solver")
        sender.send(torch.zeros(2), step=0)
        with suppress(ValueError):  # it may be known at once
            sender.send(torch.zeros(2), step=step)
        with pytest.raises(ValueError, match=f"a worker has refused a sample: .*({reason})"):
            sender.close()
        running.coordinator.until_left()
        assert "solver" in running.coordinator.warned[0]


def test_a_buffer_that_can_never_have_room_is_told_to_the_sender():
    with fit(paired=True, capacity=2, senders=3) as running:
        senders = [connect(running) for _ in range(3)]
        for sender in senders[:2]:
            sender.send(1.0, step=0)
            sender.close()
        with suppress(ValueError):  # it may be known at once
            senders[2].send(1.0, step=0)
        closing = Thread(senders[2].close)
        try:
            with pytest.raises(ValueError, match="make the capacity larger"):
                closing.result()
            [failure] = running.places[0].failures  # no sample's fault: the fit learns it, too
            assert isinstance(failure, BufferFullError)
        finally:
            running.coordinator.director.close()
            senders[2]._stream.close()
