"""Streams to workers that die."""

import warnings

import pytest

from compss_train.net.connection import ConnectionLostError
from tests.buffers.kinds import Thread
from tests.helpers.waiting import wait_until
from tests.net.plain_clients import no_open_connections
from tests.online.sample_streams import (
    connect_sender,
    expected_samples,
    number_sample,
    send_all,
    send_repeatedly,
    simulation_stream,
)
from tests.online.stub_fits import stub_fit

pytestmark = pytest.mark.usefixtures("short_waits")


@pytest.mark.usefixtures("short_pauses")
def test_a_worker_that_cannot_be_reached_is_named_in_the_error(monkeypatch):
    monkeypatch.setattr("compss_train.online.stream.UNREACHABLE_SECONDS", 0.01)
    with (
        no_open_connections(),
        stub_fit(2) as running,
        simulation_stream(running.coordinator, 0) as opened,
    ):
        running.workers[1].close()
        for act in (lambda: send_repeatedly(opened.send, number_sample(0), None), opened.finish):
            with pytest.raises(ConnectionLostError, match="worker 1 cannot be reached at ipc://"):
                act()


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("saved", [0, 3, 6])
@pytest.mark.parametrize(("workers", "worker"), [(1, 0), (2, 0), (2, 1), (3, 2)])
def test_samples_lost_with_a_worker_are_counted_in_a_warning(workers, worker, saved):
    with stub_fit(workers) as running, connect_sender(running) as sender:
        send_all(sender, range(6))
        [sent] = [
            own for number, own in enumerate(expected_samples(0, 6, workers)) if number == worker
        ]
        wait_until(lambda: running.workers[worker].buffer.samples_put == len(sent))
        running.kill(worker)
        running.replace(worker, {0: saved})
        lost = sum(number >= saved for number in sent)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sender.close()
        messages = [str(warning.message) for warning in caught]
        assert len(messages) == (lost > 0)
        assert all(
            f"worker {worker} disconnected" in text and f"{lost} samples" in text
            for text in messages
        )
        assert running.coordinator.wait_for("finished") == [6]


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("waiting", ["for room", "for its samples to arrive", "not at all"])
def test_the_coordinator_announces_a_silently_lost_worker(waiting):
    capacity = 200 if waiting == "not at all" else 1
    with stub_fit(capacity=capacity) as running, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sender = connect_sender(running)
        silent = running.workers[0]
        sending = Thread(send_all, sender, range(300 if waiting == "for room" else 3))
        try:
            if waiting != "for room":
                sending.result()
            if waiting == "for its samples to arrive":
                sending = Thread(sender.close)
            wait_until(lambda: silent.buffer.samples_put == 3 or silent.buffer.waiting)
            running.coordinator.set_url(0, None)
            if waiting == "not at all":
                sender.stream.update(10)
                sending = Thread(sender.send, number_sample(3)[0])
            wait_until(lambda: sender.stream.urls == [None])
            running.replace(0, {}, capacity=400)
            sending.result()
            sender.close()
        finally:
            silent.close()
        assert ["worker 0 disconnected" in str(warning.message) for warning in caught] == [True]
