"""Streams of samples to workers that go away."""

import warnings

import pytest
import torch

from compss_train.exceptions import TrainingEndedError
from compss_train.online.stream import Stream, WorkerGoneError
from tests.buffers.kinds import Thread, until
from tests.online.parts import fit, stream, value
from tests.online.streams import connect, nothing_open, send_all, send_on, turns

pytestmark = pytest.mark.usefixtures("short_waits")


@pytest.mark.usefixtures("short_pauses")
def test_a_simulation_whose_worker_dies_learns_which():
    with fit(2) as running, stream(running.coordinator, 0) as opened:
        running.places[1].die()
        opened.send(value(0), None)
        with pytest.raises(WorkerGoneError, match="worker 1 is gone") as raised:
            send_on(opened.send, value(0), None)
        assert raised.value.worker == 1
        with pytest.raises(WorkerGoneError):
            opened.finish()


@pytest.mark.usefixtures("short_pauses")
def test_a_worker_that_is_gone_before_a_stream_is_open_is_told():
    with nothing_open(), fit(2) as running:
        running.places[1].die()
        opened = Stream(running.coordinator.address, {"hello": "simulation", "number": 0})
        with opened, pytest.raises(WorkerGoneError, match="worker 1 is gone"):
            opened.open()


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("saved", [0, 3, 6])
@pytest.mark.parametrize(("workers", "worker"), [(1, 0), (2, 0), (2, 1), (3, 2)])
def test_samples_that_die_with_a_worker_are_counted_in_a_warning(workers, worker, saved):
    with fit(workers) as running, connect(running) as sender:
        send_all(sender, range(6))
        [sent] = [own for number, own in enumerate(turns(0, 6, workers)) if number == worker]
        until(lambda: running.places[worker].buffer.samples_put == len(sent))
        running.die(worker)
        running.replace(worker, {0: saved})
        lost = sum(number >= saved for number in sent)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sender.close()
        told = [str(each.message) for each in caught]
        assert len(told) == (lost > 0)
        assert all(f"worker {worker} is gone" in text and f"with it {lost} samples" in text for text in told)
        assert running.coordinator.until_heard("finished") == [6]


@pytest.mark.usefixtures("short_pauses")
def test_what_is_sent_while_a_worker_is_away_goes_to_its_successor():
    with fit(2) as running, connect(running) as sender:
        send_all(sender, range(2))
        until(lambda: running.places[1].buffer.samples_put == 1)
        running.die(1)
        going_on = Thread(send_all, sender, range(2, 400))
        running.coordinator.until_heard("lost")
        assert going_on.is_alive()
        running.replace(1, {0: 2}, capacity=400)
        lost = ""
        try:
            going_on.result()
        except UserWarning as warning:
            lost = str(warning)
        sender.close()
        first = running.places[1].drained()
        assert first == sorted(set(first))
        assert all(number % 2 for number in first)
        assert (399 - first[0] == 2 * (len(first) - 1)) or lost
        assert running.places[0].drained() == list(range(0, 400, 2))[: len(running.places[0].drained()) or None]


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("waiting", ["for room", "for its samples to arrive", "not at all"])
def test_a_worker_that_is_gone_without_a_word_is_told_by_the_coordinator(waiting):
    capacity, size, samples = (200, 1, 3) if waiting == "not at all" else (1, 2**18, 3)
    with fit(capacity=capacity, small=True) as running, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        sender, silent = connect(running), running.places[0]
        act = Thread(
            lambda: [sender.send(torch.zeros(size)) for _ in range(30 if waiting == "for room" else samples)]
        )
        try:
            if waiting != "for room":
                act.result()
            if waiting == "for its samples to arrive":
                act = Thread(sender.close)
            until(lambda: silent.buffer.samples_put == samples or silent.buffer._room_made._waiters)
            running.coordinator.place(0, None)
            if waiting == "not at all":
                until(lambda: sender._stream._workers[0]._socket.fileno() == -1)
                act = Thread(sender.send, torch.zeros(size))
            running.coordinator.until_heard("lost")
            running.replace(0, {}, capacity=40)
            act.result()
            sender.close()
        finally:
            silent.die()
        assert ["worker 0 is gone" in str(each.message) for each in told] == [True]
        assert running.places[0].buffer.samples_put < 30


@pytest.mark.usefixtures("short_pauses")
def test_a_worker_that_has_left_is_no_matter_to_the_connections_to_others():
    with fit(2) as running, stream(running.coordinator, 0) as opened:
        running.coordinator.place(1, None)
        until(lambda: opened._workers[1]._socket.fileno() == -1)
        opened.send(value(0), None)
        for act in (lambda: opened.send(value(1), None), opened.finish):
            with pytest.raises(WorkerGoneError, match="worker 1 is gone"):
                act()
        until(lambda: running.places[0].buffer.samples_put == 1)


@pytest.mark.usefixtures("short_pauses")
def test_a_successor_that_is_gone_too_is_waited_for_again():
    with fit() as running, connect(running) as sender:
        send_all(sender, range(2))
        until(lambda: running.places[0].buffer.samples_put == 2)
        running.places[0].die()  # which the coordinator does not know yet: it still tells the old place
        closing = Thread(sender.close)
        running.coordinator.until_heard("lost")
        running.coordinator.place(0, None)
        running.replace(0, {0: 2})
        closing.result()
        assert running.coordinator.until_heard("finished") == [2]


def test_training_that_ends_while_a_successor_is_waited_for_is_told():
    with fit() as running:
        sender = connect(running)
        send_all(sender, range(2))
        running.die(0)
        closing = Thread(sender.close)
        running.coordinator.until_heard("lost")
        running.coordinator.director.close()
        with pytest.raises(TrainingEndedError):
            closing.result()
        sender._stream.close()
