"""Streams of samples into an online fit: who gets what."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compss_train.online.sender import as_sample
from tests.buffers.kinds import STEPS, Thread, until
from tests.online.parts import fit, stream, value
from tests.online.streams import connect, send_all, turns

pytestmark = pytest.mark.usefixtures("short_waits")


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
        # One connection may be heard before another whose stream has ended earlier.
        assert sorted(running.coordinator.until_heard("finished", len(amounts))) == sorted(amounts)
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
