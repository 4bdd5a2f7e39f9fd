"""Streams of samples into an online fit: who gets what, and what becomes of it when somebody goes away."""

import itertools
import re
import socket
import threading
import time
import warnings
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compss_train.buffers import BufferFullError
from compss_train.exceptions import TrainingEndedError
from compss_train.online import sender as sending
from compss_train.online import watchdog
from compss_train.online.connection import Connection
from compss_train.online.dealing import worker_of
from compss_train.online.reception import Reception
from compss_train.online.sender import SampleSender, as_sample, host_and_port
from compss_train.online.simulation import simulate_and_send
from compss_train.online.stream import BusyNameError, Stream, WorkerGoneError
from tests.buffers.kinds import DEADLINE, STEPS, Hold, Thread, until
from tests.online.parts import HERE, KEY, TOKEN, bare, fit, frame, nothing_left, said, stream, value


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(sending, "_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(watchdog, "_GRACE", 1000.0)  # it would end this process


@pytest.fixture
def _short_pauses(monkeypatch):
    """Where training does not end, whoever loses a worker need not wait to see whether it has."""
    monkeypatch.setattr("compss_train.online.stream._PAUSE", 0.01)


@contextmanager
def nothing_open():
    """Check that every connection that is made in the block is closed."""
    made, init = [], Connection.__init__

    def keep(connection, sock):
        made.append(sock)
        init(connection, sock)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "__init__", keep)
        yield
    until(lambda: all(sock.fileno() == -1 for sock in made))


def connect(running, name=None, **options):
    return SampleSender(running.coordinator.url, TOKEN, name, **options)


def send_all(sender, numbers, *, paired=False):
    for number in numbers:
        sender.send(*value(number), step=number % STEPS if paired else None)


def send_on(send, *sample):
    for _ in range(10_000):
        send(*sample)


def turns(number, samples, workers, *, whole=False):
    """Return for each worker the samples of a stream that it should get."""
    dealt = [worker_of(number, sample, workers, whole=whole) for sample in range(samples)]
    return [[n for n in range(samples) if dealt[n] == worker] for worker in range(workers)]


# Who gets what


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), st.lists(st.integers(0, 9), min_size=1, max_size=3))
def test_samples_of_all_streams_are_dealt_in_order(workers, amounts):
    with fit(workers) as running:
        expected = [[] for _ in range(workers)]
        for number, samples in enumerate(amounts):
            with stream(running.coordinator, number) as opened:
                assert (opened.wanted, opened.number, opened.paired, opened.delivered) == (True, number, False, 0)
                for sample in range(samples):
                    opened.send(value(100 * number + sample), None)
                opened.finish()
            for own, turn in zip(expected, turns(number, samples, workers), strict=True):
                own += [100 * number + sample for sample in turn]
        assert running.coordinator.until_heard("finished", len(amounts)) == amounts
        assert [place.drained() for place in running.places] == expected


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_paired_streams_go_whole_to_one_worker_with_their_steps(workers):
    with fit(workers, paired=True, senders=4) as running:
        for _ in range(4):
            with connect(running) as sender:
                send_all(sender, range(STEPS), paired=True)
        places = [place.buffer for place in running.places]
        assert [len(buffer) for buffer in places] == [STEPS * len(range(w, 4, workers)) for w in range(workers)]
        for worker, buffer in enumerate(places):
            earlier, later = buffer.get_batch(40)
            assert earlier.simulation.tolist() == later.simulation.tolist()
            assert set((earlier.simulation % workers).tolist()) == {worker}
            for part in (earlier, later):
                assert part.step.tolist() == part.data[0].flatten().tolist()


def test_samples_are_what_a_caller_has_as_arrays():
    for given_, dtype, shape in [
        (1.5, torch.float32, ()),
        (2, torch.int64, ()),
        (True, torch.bool, ()),
        (np.float64(3), torch.float64, ()),
        ([1.0, 2.0], torch.float32, (2,)),
        (np.zeros((0, 2)), torch.float64, (0, 2)),
        (torch.ones(2, 1).half(), torch.float16, (2, 1)),
    ]:
        [part] = as_sample([given_])
        assert (torch.as_tensor(part).dtype, tuple(part.shape)) == (dtype, shape)


def test_x_comes_with_or_without_y():
    with fit(2) as running, connect(running) as sender:
        sender.send(np.array([1.0]), 2)
        sender.send(3.0)
        sender.close()
        x, y = running.places[0].buffer.get()
        assert (x.tolist(), y.tolist(), x.dtype, y.dtype) == ([1.0], 2, torch.float64, torch.int64)
        [x] = running.places[1].buffer.get()
        assert x.item() == 3.0


def test_a_stream_begins_when_all_workers_are_there():
    with fit(2) as running:
        running.coordinator.place(1, None)
        opening = Thread(stream, running.coordinator, 0)
        running.coordinator.until_heard("hello")
        assert running.coordinator.do(lambda: len(running.coordinator.reception._asking)) == 1
        assert opening.is_alive()
        running.coordinator.place(1, running.places[1].port)
        with opening.result() as opened:
            assert opened.wanted


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(0, STEPS), min_size=1, max_size=4), st.integers(1, 3), st.booleans())
def test_under_its_name_a_sender_goes_on_where_it_was(stops, workers, paired):
    with fit(workers, paired=paired) as running:
        most = 0
        for stop in [*stops, STEPS]:
            with connect(running, "solver") as sender:
                assert sender.delivered <= most
                send_all(sender, range(stop), paired=paired)
                most = max(most, stop)
        assert set(running.coordinator.headers("name")) == {"solver"}
        got = [place.buffer.samples_put for place in running.places]
        assert got == [len(own) for own in turns(0, STEPS, workers, whole=paired)]


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_delivered_tells_how_many_had_arrived(workers, paired):
    with fit(workers, paired=paired) as running:
        for samples in range(6):
            with connect(running, "solver") as sender:
                assert sender.delivered == max(0, samples - 1)
                send_all(sender, range(samples), paired=paired)


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, STEPS),
    st.lists(st.tuples(st.integers(0, STEPS), st.booleans()), max_size=3),
    st.integers(1, 3),
    st.booleans(),
)
def test_what_has_arrived_may_be_skipped_in_any_way_and_no_more(before, ways, workers, paired):
    with fit(workers, paired=paired, senders=2) as running:
        with connect(running, "solver") as sender:
            send_all(sender, range(before), paired=paired)
        with connect(running, "solver") as sender:
            delivered, number = sender.delivered, 0
            assert max(0, before - 1) <= delivered <= before
            for skipped, sends in [*ways, (delivered, False)]:
                skipped = min(skipped, delivered - number)
                for wrong in (-1, delivered - number + 1):
                    what = rf"skip\({wrong}\).* {delivered - number} have arrived before; send the others"
                    with pytest.raises(ValueError, match=what):
                        sender.skip(wrong)
                sender.skip(skipped)
                number += skipped
                if sends and number < delivered:  # it may as well send them again
                    send_all(sender, [number], paired=paired)
                    number += 1
            send_all(sender, range(delivered, STEPS), paired=paired)
        assert running.coordinator.until_heard("finished", 2) == [before, STEPS]
        turn = turns(0, STEPS, workers, whole=paired)
        assert [place.buffer.samples_put for place in running.places] == [len(own) for own in turn]
        if not paired:
            assert [place.drained() for place in running.places] == turn


def test_a_name_is_free_again_when_the_coordinator_hears_that_its_sender_has_ended():
    with fit() as running:
        sender = connect(running, "solver")
        handle, waiting = running.coordinator.senders.handle, []

        def late(peer, header):
            """Hear of the first one's end after the second one's hello, as threads may have it."""
            if header is not None and "finished" in header:
                waiting.append((peer, header))
            else:
                handle(peer, header)
                while waiting and header is not None:
                    handle(*waiting.pop())

        running.coordinator.senders.handle = late
        sender.close()
        again = connect(running, "solver")
        assert again.delivered == 0
        again._stream.close()


def test_senders_with_other_names_or_none_are_other_streams():
    with fit(senders=4) as running:
        for name in ("a", "b", None, None):
            with connect(running, name) as sender:
                assert sender.delivered == 0
                send_all(sender, range(3))
        until(lambda: running.coordinator.do(lambda: running.coordinator.senders.all_ended))
        assert running.places[0].drained() == [0, 1, 2] * 4


def test_as_many_senders_as_announced_must_have_ended():
    with fit(senders=2) as running:
        ended = lambda: running.coordinator.do(lambda: running.coordinator.senders.all_ended)  # noqa: E731
        connect(running, "a").close()
        running.coordinator.until_heard("finished")
        connect(running, "a").close()  # once more
        running.coordinator.until_heard("finished", 2)
        assert not ended()
        with connect(running, "b"), connect(running):
            assert not ended()
        running.coordinator.until_heard("finished", 4)
        assert ended()


class Told:
    """A worker that died, which lacks some samples of each stream."""

    number = 4

    def lacks(self, job, stream, samples):
        return samples > job[stream]


def test_what_dies_with_a_worker_and_nobody_will_send_again_is_told():
    with fit(senders=4) as running:
        senders = running.coordinator.senders
        for name, samples in (("a", 3), ("b", 0), ("c", 2)):
            with connect(running, name) as sender:
                send_all(sender, range(samples))
        running.coordinator.until_heard("finished", 3)
        with connect(running, "c"):  # it sends, and will be told itself
            for saved, number in (([2, 0, 0], 1), ([3, 0, 0], 0)):
                with warnings.catch_warnings(record=True) as told:
                    warnings.simplefilter("always")
                    running.coordinator.do(lambda saved=saved: senders.tell_lost(Told(), saved))
                assert len(told) == number
                assert all(f"worker 4 has died, and with it samples of {number}" in str(w.message) for w in told)


# What ends


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


ENDS = {
    "stop": lambda running: running.coordinator.tell_all({"stop": True}),
    "senders' stop": lambda running: running.coordinator.do(running.coordinator.senders.stop),
    "close": lambda running: running.coordinator.director.close(),
    "all": lambda running: [running.coordinator.director.close(), *(place.die() for place in running.places)],
}


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


# Samples that are refused


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


# Workers that go away


@pytest.mark.usefixtures("_short_pauses")
def test_a_simulation_whose_worker_dies_learns_which():
    with fit(2) as running, stream(running.coordinator, 0) as opened:
        running.places[1].die()
        opened.send(value(0), None)
        with pytest.raises(WorkerGoneError, match="worker 1 is gone") as raised:
            send_on(opened.send, value(0), None)
        assert raised.value.worker == 1
        with pytest.raises(WorkerGoneError):
            opened.finish()


@pytest.mark.usefixtures("_short_pauses")
def test_a_worker_that_is_gone_before_a_stream_is_open_is_told():
    with nothing_open(), fit(2) as running:
        running.places[1].die()
        opened = Stream(running.coordinator.address, {"hello": "simulation", "number": 0})
        with opened, pytest.raises(WorkerGoneError, match="worker 1 is gone"):
            opened.open()


@pytest.mark.usefixtures("_short_pauses")
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


@pytest.mark.usefixtures("_short_pauses")
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


@pytest.mark.usefixtures("_short_pauses")
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


@pytest.mark.usefixtures("_short_pauses")
def test_a_worker_that_has_left_is_no_matter_to_the_connections_to_others():
    with fit(2) as running, stream(running.coordinator, 0) as opened:
        running.coordinator.place(1, None)
        until(lambda: opened._workers[1]._socket.fileno() == -1)
        opened.send(value(0), None)
        for act in (lambda: opened.send(value(1), None), opened.finish):
            with pytest.raises(WorkerGoneError, match="worker 1 is gone"):
                act()
        until(lambda: running.places[0].buffer.samples_put == 1)


@pytest.mark.usefixtures("_short_pauses")
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


# Beginning


@pytest.mark.usefixtures("_short_pauses")
def test_a_sender_that_meets_a_dead_worker_at_first_tries_again(monkeypatch):
    with nothing_open(), fit() as running:
        running.places[0].die()

        successors = iter([True])

        def replace(seconds):
            if next(successors, False):
                running.coordinator.place(0, None)
                running.replace(0)
            else:  # its name is not free yet
                time.sleep(seconds)

        monkeypatch.setattr(sending, "time", SimpleNamespace(monotonic=time.monotonic, sleep=replace))
        with connect(running, "solver") as sender:
            send_all(sender, range(3))
        assert running.coordinator.until_heard("finished") == [3]
        until(lambda: running.coordinator.do(lambda: running.coordinator.senders.all_ended))


def test_a_sender_waits_for_a_fit_that_has_not_begun(monkeypatch):
    with fit() as running:
        coordinator, waits = running.coordinator, []
        real = sending.Stream

        def not_yet(address, hello):
            if len(waits) < 3:
                raise ConnectionRefusedError
            return real(address, hello)

        monkeypatch.setattr(sending, "Stream", not_yet)
        monkeypatch.setattr(sending, "time", SimpleNamespace(monotonic=time.monotonic, sleep=waits.append))
        connect(running).close()
        assert len(waits) == 3
        assert coordinator.until_heard("finished") == [0]


def free_port():
    with socket.create_server((HERE, 0)) as free:
        return free.getsockname()[1]


def test_where_nobody_listens_that_is_told_in_time():
    port = free_port()
    with (
        nothing_open(),
        pytest.raises(ConnectionRefusedError, match=f"nobody listens at tcp://{HERE}:{port}; start"),
    ):
        SampleSender(f"tcp://{HERE}:{port}", TOKEN, timeout=0)


def test_who_may_not_send_is_told_why():
    with nothing_open(), fit(senders=1) as running:
        for port, token in (
            (running.coordinator.door.port, TOKEN + "x"),
            (running.coordinator.address.port, TOKEN),
        ):
            with pytest.raises(PermissionError, match=f"{HERE}:.*the token"):  # at once: it will be no other one
                SampleSender(f"tcp://{HERE}:{port}", token)
        with connect(running, "solver") as first:
            with pytest.raises(PermissionError, match="another program sends as 'solver'") as raised:
                connect(running, "solver", timeout=0)
            assert isinstance(raised.value, BusyNameError)
            first.send(1.0)
        assert running.places[0].drained() == [1]


def test_who_comes_when_the_buffers_know_that_nothing_more_will_come_is_not_wanted():
    with nothing_open(), fit() as running:
        running.coordinator.do(running.coordinator.senders.shut_out)
        with pytest.raises(TrainingEndedError, match="no more samples are wanted"):
            connect(running)


@pytest.mark.parametrize("how", ["ends", "is gone"])
def test_a_sender_waits_until_its_name_is_free(monkeypatch, how):
    with nothing_open(), fit() as running:
        first, waits = connect(running, "solver"), []
        first.send(1.0)
        until(lambda: running.places[0].buffer.samples_put == 1)

        def wait(seconds):
            waits.append(seconds)
            if len(waits) == 3:
                first.close() if how == "ends" else first._stream.close()

        monkeypatch.setattr(sending, "time", SimpleNamespace(monotonic=time.monotonic, sleep=wait))
        with connect(running, "solver") as again:
            assert (len(waits) >= 3, again.delivered) == (True, 1)
            again.skip(1)
        assert running.coordinator.until_heard("finished")[-1] == 1


def test_a_fit_that_ends_while_a_stream_begins_leaves_nothing_open():
    with nothing_open(), fit() as running:
        running.coordinator.place(0, None)
        opening = Thread(connect, running)
        running.coordinator.until_heard("hello")
        running.coordinator.director.close()
        with pytest.raises(OSError):
            opening.result()


@pytest.mark.parametrize(
    "address",
    [
        *(
            "",
            "localhost:5555",
            "tcp://localhost",
            "tcp://:5555",
            "tcp://*:5555",
            "tcp://host:port",
            "tcp://host:-1",
        ),
        *(
            "tcp://host:65536",
            "tcp://host:5555/",
            "http://host:80",
            "tcp://host:1 ",
            "xtcp://host:1",
            "tcp://a:1\n",
        ),
        *(None, 5555, b"tcp://host:5555", ("host", 5555)),
    ],
)
def test_an_address_that_is_none_is_an_error_that_says_what_to_give(address):
    for read in (host_and_port, lambda address: SampleSender(address, TOKEN)):
        with pytest.raises(ValueError, match=r"address=.*: give tcp://HOST:PORT"):
            read(address)


@given(st.text("abz09.-", min_size=1), st.integers(0, 65535))
def test_an_address_is_read_as_it_was_written(host, port):
    assert host_and_port(f"tcp://{host}:{port}") == (host, port)


@pytest.mark.parametrize("name", [["a"], {"a": 1}, 1.5])
def test_a_name_that_is_none_harms_nobody_else(name):
    with fit(senders=2) as running:
        with pytest.raises((PermissionError, TypeError, ValueError)):
            connect(running, name)
        with connect(running, "solver") as sender:
            sender.send(1.0)
        assert running.coordinator.until_heard("finished") == [1]


# Reception


class Asking:
    """A stream's control connection, that keeps what it is told."""

    def __init__(self):
        self.told = []

    def tell(self, header):
        self.told.append(header)

    def heard(self):
        told, self.told = self.told, []
        return told


@pytest.fixture
def workers():
    return [SimpleNamespace(number=number, place=[HERE, number], runs=1) for number in range(3)]


@pytest.mark.parametrize("paired", [False, True])
def test_streams_are_welcome_when_all_workers_have_places(workers, paired):
    reception, peers = Reception(workers, KEY, paired=paired), [Asking() for _ in range(3)]
    for worker in workers:
        worker.place = None
    for number, worker in enumerate(workers):
        reception.welcome(peers[number], 7 + number)
        assert [peer.told for peer in peers] == [[], [], []]
        if number == 1:
            reception.leave(peers[0])  # it does not wait any longer
        worker.place = [HERE, number]
        reception.look()
    places = [[HERE, 0], [HERE, 1], [HERE, 2]]
    answers = [{"go": True, "stream": 7 + n, "workers": places, "key": KEY, "paired": paired} for n in range(3)]
    assert [peer.told for peer in peers] == [[], answers[1:2], answers[2:]]
    reception.look()
    assert [len(peer.heard()) for peer in peers] == [0, 1, 1]  # each once
    reception.welcome(peers[0], 7)
    assert peers[0].told == answers[:1]


def test_a_place_is_sought_until_there_is_another_one(workers):
    reception, peer, other = Reception(workers, KEY, paired=False), Asking(), Asking()
    lost = {"lost": 1, "place": list(workers[1].place)}
    reception.seek(peer, lost)
    reception.seek(other, lost)
    for place in (workers[1].place, None):
        workers[1].place = place
        workers[0].place = [HERE, 99]  # is not what it asks for
        reception.look()
        assert peer.told == []
    reception.leave(other)
    workers[1].place, workers[2].place = [HERE, 5], None  # others may be away
    for _ in range(2):
        reception.look()
    assert (peer.heard(), other.told) == ([{"place": [HERE, 5]}], [])
    reception.seek(peer, lost)  # there is one already
    assert peer.heard() == [{"place": [HERE, 5]}]
    reception.seek(peer, {"lost": 1})  # from nowhere
    assert peer.heard() == [{"place": [HERE, 5]}]


@pytest.mark.parametrize("lost", [-1, 3, "x", None])
def test_a_worker_that_there_is_none_of_is_not_sought(workers, lost):
    reception, peer = Reception(workers, KEY, paired=False), Asking()
    with pytest.raises((ValueError, TypeError)):
        reception.seek(peer, {"lost": lost})
    reception.look()
    assert peer.told == []


def test_who_leaves_learns_which_workers_have_died_since_it_was_welcome(workers):
    reception, peers = Reception(workers, KEY, paired=False), [Asking() for _ in range(3)]
    reception.welcome(peers[0], 0)
    workers[1].place = None
    reception.welcome(peers[1], 1)  # it is answered by all as they are later
    workers[1].runs, workers[1].place = 2, [HERE, 9]
    reception.look()
    workers[2].runs += 1
    assert reception.leave(peers[0]) == workers[1:]
    assert reception.leave(peers[1]) == workers[2:]
    assert [reception.leave(peer) for peer in peers] == [[], [], []]


def test_only_those_who_send_are_told_that_a_worker_has_left(workers):
    reception, peers = Reception(workers, KEY, paired=False), [Asking() for _ in range(3)]
    reception.welcome(peers[0], 0)
    reception.welcome(peers[1], 1)
    reception.leave(peers[1])
    workers[2].place = None
    reception.welcome(peers[2], 2)
    for peer in peers:
        peer.heard()
    reception.tell_left(workers[2])
    assert [peer.told for peer in peers] == [[{"left": 2}], [], []]


# The documented messages


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("slow", [False, True])
def test_a_client_of_sockets_alone_sends_samples_as_documented(paired, slow):
    def say(sock, header, *arrays):
        data = frame(header, *arrays)
        for part in [data[n : n + 1] for n in range(len(data))] if slow else [data]:
            sock.sendall(part)

    with fit(2, paired=paired) as running, bare(running.coordinator.door.port) as control:
        say(control, {"hello": "sender", "name": None, "token": TOKEN})
        told = said(control)
        number, workers = told["stream"], told["workers"]
        assert (told["go"], told["paired"], len(workers)) == (True, paired, 2)
        socks = [bare(port) for _, port in workers]
        for sock in socks:
            say(sock, {"hello": "samples", "stream": number, "token": told["key"]})
            assert said(sock)["next"] == 0
        for n in range(5):
            turn = number % 2 if paired else (number + n) % 2
            step = {"step": n} if paired else {}
            say(socks[turn], {"sample": n, **step}, torch.tensor([n, n * 0.5]), torch.tensor([-float(n)]))
        for sock in socks:
            say(sock, {"end": True})
            assert said(sock)["ended"] is True
        say(control, {"finished": 5})
        running.coordinator.until_heard("finished")
        until(lambda: running.coordinator.do(lambda: running.coordinator.senders.all_ended))
        for sock in socks:
            sock.close()
        if paired:
            assert [place.buffer.samples_put for place in running.places] == [5, 0]
        else:
            for worker, place in enumerate(running.places):
                own = torch.arange(worker, 5, 2.0)
                x, y = place.buffer.get_batch(len(own))
                assert torch.equal(x, torch.stack([own, own / 2], 1))
                assert torch.equal(y, -own[:, None])


NONSENSE = {
    "a sample that is no number": frame({"sample": "x"}, torch.zeros(2)),
    "something else": frame({"what": 1}),
    "no sample": frame({"sample": None}),
    "no arrays": frame({"sample": 0}),
    "no shape": frame({"sample": 0, "arrays": [["float32", [-1]]]}),
    "no dtype": frame({"sample": 0, "arrays": [["object", [1]]]}),
    "too large an array": frame({"sample": 0, "arrays": [["uint8", [2**60]]]}),
    "no message": b"\xff" * 5,
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_a_client_that_says_nonsense_is_told_and_others_go_on(nonsense):
    with fit() as running, connect(running) as other:
        other.send(torch.zeros(2), torch.zeros(1))
        with bare(running.places[0].port) as sock:
            sock.sendall(frame({"hello": "samples", "stream": 9, "token": KEY}))
            assert said(sock)["next"] == 0
            sock.sendall(NONSENSE[nonsense])
            assert "error" in said(sock)
            sock.sendall(NONSENSE[nonsense] * 3)  # which nobody minds
        other.send(torch.ones(2), torch.ones(1))
        assert running.places[0].failures == []


@pytest.mark.parametrize("hello", [{}, {"stream": None}, {"stream": "x"}, {"stream": [1]}], ids=str)
def test_a_hello_without_a_stream_does_no_harm(hello):
    with fit() as running, connect(running) as other:
        with bare(running.places[0].port) as sock:
            sock.sendall(frame({"hello": "samples", "token": KEY, **hello}))
            sock.shutdown(socket.SHUT_WR)
            assert b"next" not in b"".join(iter(lambda: sock.recv(2**16), b""))
        other.send(1.0)


# Simulations' tasks


def run(running, simulate, given_=None, number=0, limit=None):
    picked = simulate if isinstance(simulate, bytes) else cloudpickle.dumps(simulate)
    simulate_and_send(picked, cloudpickle.dumps(given_), number, running.coordinator.address, limit)


def test_a_simulation_sends_all_samples_and_says_so():
    with fit(2) as running:
        run(running, lambda n: ((torch.tensor([float(i)]),) for i in range(n)), 5)
        assert running.coordinator.until_heard("finished") == [5]
        assert [place.drained() for place in running.places] == [[0, 2, 4], [1, 3]]
        run(running, lambda n: iter([]), 5, number=1)
        assert running.coordinator.until_heard("finished", 2) == [5, 0]


class Bad(list):
    def __setstate__(self, state):
        raise KeyError("cannot be made")


def raising(error):
    def simulate(_):
        yield 1.0
        yield 2.0
        raise error

    return simulate


def not_iterable(_):
    return 5


@pytest.mark.parametrize(
    ("simulate", "sent", "reason"),
    [
        (raising(ZeroDivisionError("oh")), 2, "ZeroDivisionError: oh"),
        (raising(SystemExit(3)), 2, "SystemExit: 3"),
        (raising(FileNotFoundError("gone")), 2, "FileNotFoundError: gone"),
        (not_iterable, 0, "TypeError: 'int' object is not iterable"),
        (lambda _: [(1, 2, 3, 4)], 0, "TypeError: the simulation gave a tuple of 4; a sample is"),
        (lambda _: [1.0, ()], 1, "TypeError: the simulation gave a tuple of 0; a sample is"),
        (lambda _: [1.0, object()], 1, "RuntimeError: .*object"),
        (
            lambda _: [1.0, torch.zeros(1, dtype=torch.uint16)],
            1,
            "TypeError: arrays of torch.uint16 cannot be sent",
        ),
        (b"no pickle", 0, "UnpicklingError"),
    ],
    ids=["raises", "exits", "no file", "not iterable", "four", "empty", "object", "uint16", "pickle"],
)
def test_what_goes_wrong_in_a_simulation_is_told_and_not_raised(simulate, sent, reason):
    with fit() as running:
        run(running, simulate)
        [failed] = running.coordinator.until_heard("failed")
        assert re.match(reason, failed)
        assert running.places[0].buffer.samples_put == sent  # it waits until they are there: there may be no others
        assert running.coordinator.headers("traceback")[0].startswith("Traceback")
        assert running.coordinator.headers("finished") == []


def test_a_paired_simulation_gives_steps():
    with fit(paired=True) as running:
        run(running, lambda _: [(step, torch.ones(2), torch.zeros(1)) for step in range(3)])
        assert running.coordinator.until_heard("finished") == [3]
        run(running, lambda _: [(torch.ones(2), torch.zeros(1))], number=1)
        assert (
            "a sample is (step, x, y), as the buffer pairs time steps"
            in running.coordinator.until_heard("failed")[0]
        )


@pytest.mark.parametrize("end", ["stop", "close"])
def test_a_simulation_that_is_wanted_no_more_is_closed_and_says_nothing(end):
    closed, gave = threading.Event(), threading.Event()
    running_forever = SimpleNamespace(closed=closed, gave=gave)

    def simulate(_):
        try:
            for number in itertools.count():
                gave.set()
                yield float(number)
        finally:
            closed.set()

    with fit(capacity=3) as running, pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "compss_train.online.simulation.pickle.loads", lambda what: simulate if what == b"s" else what
        )
        simulating = Thread(simulate_and_send, b"s", b"", 0, running.coordinator.address, None)
        assert running_forever.gave.wait(DEADLINE)
        ENDS[end](running)
        simulating.result()
        assert closed.is_set()
        assert running.coordinator.headers("failed") == running.coordinator.headers("finished") == []


@pytest.mark.usefixtures("_short_pauses")
def test_a_simulation_that_lost_a_worker_says_that_it_was_interrupted():
    with fit(2) as running, pytest.MonkeyPatch.context() as patch:
        running.places[1].die()
        patch.setattr(sending, "_RETRY_SECONDS", 0.01)
        run(running, lambda _: itertools.repeat(1.0))
        assert running.coordinator.until_heard("interrupted")[0].startswith("worker 1 is gone")
        assert running.coordinator.headers("failed") == []


def test_a_simulation_without_a_coordinator_or_that_is_not_wanted_does_nothing():
    with nothing_left(), nothing_open():
        with fit() as running:
            address = running.coordinator.address
            running.coordinator.reception.welcome = lambda peer, number: peer.tell({"go": False})
            run(running, b"never loaded")
            assert running.coordinator.headers("failed") == []
        simulate_and_send(b"", b"", 0, address, None)


def test_a_simulation_that_runs_again_sends_only_what_is_missing():
    with fit(2) as running:
        sent, send = [], Connection.send

        def keep(connection, header, arrays=()):
            sent.extend([header["sample"]] if "sample" in header else [])
            send(connection, header, arrays)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "send", keep)
            for stop in (3, 7, 2):
                run(running, lambda n: [torch.tensor([float(i)]) for i in range(n)], stop)
        assert running.coordinator.until_heard("finished", 3) == [3, 7, 2]
        assert sent == list(range(7))
        assert [place.drained() for place in running.places] == [[0, 2, 4, 6], [1, 3, 5]]
