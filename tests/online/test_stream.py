"""Streams of samples into an online fit: routing, names, and delivered samples."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compss_train.online.intake import NUMBERS
from tests.buffers.kinds import STEPS
from tests.helpers.waiting import wait_until
from tests.online.sample_streams import (
    connect_sender,
    expected_samples,
    number_sample,
    send_all,
    send_from_one_memory,
    simulation_stream,
)
from tests.online.stub_fits import stub_fit

pytestmark = pytest.mark.usefixtures("short_waits")


@given(st.integers(1, 4), st.lists(st.integers(0, 9), min_size=1, max_size=3))
def test_samples_of_all_streams_are_routed_in_order(workers, amounts):
    with stub_fit(workers) as running:
        expected = [[] for _ in range(workers)]
        for number, samples in enumerate(amounts):
            with simulation_stream(running.coordinator, number) as opened:
                assert (opened.accepted, opened.number, opened.paired, opened.delivered) == (
                    True,
                    number,
                    False,
                    0,
                )
                for sample in range(samples):
                    opened.send(number_sample(100 * number + sample), None)
                opened.finish()
            by_worker = expected_samples(number, samples, workers)
            for worker_samples, turn in zip(expected, by_worker, strict=True):
                worker_samples += [100 * number + sample for sample in turn]
        # Events of different connections may arrive in another order.
        assert sorted(running.coordinator.wait_for("finished", len(amounts))) == sorted(amounts)
        assert [stub.drain() for stub in running.workers] == expected


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_paired_streams_go_to_one_worker_with_their_steps(workers):
    with stub_fit(workers, paired=True, senders=4) as running:
        for _ in range(4):
            with connect_sender(running) as sender:
                send_all(sender, range(STEPS), paired=True)
        places = [stub.buffer for stub in running.workers]
        assert [len(buffer) for buffer in places] == [
            STEPS * len(range(w, 4, workers)) for w in range(workers)
        ]
        for worker, buffer in enumerate(places):
            earlier, later = buffer.get_batch(40)
            assert earlier.simulation.tolist() == later.simulation.tolist()
            assert set((earlier.simulation % workers).tolist()) == {worker}
            for part in (earlier, later):
                assert part.step.tolist() == part.data[0].flatten().tolist()


# Samples that travel together


@pytest.fixture
def gather_all(monkeypatch):
    """Let all samples but the first of a stream be gathered, until something has them sent."""
    monkeypatch.setattr("compss_train.online.stream._GATHERING_SECONDS", 1000.0)


def test_samples_that_follow_soon_are_sent_without_another_one():
    with stub_fit() as running, connect_sender(running) as sender:
        send_all(sender, range(50))
        wait_until(lambda: running.workers[0].buffer.samples_put == 50)


@pytest.mark.usefixtures("gather_all")
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_gathered_samples_are_sent_at_the_end_of_a_program_that_fails(workers):
    with stub_fit(workers, senders=2) as running:
        sender = connect_sender(running)
        send_all(sender, range(20))
        assert sum(stub.buffer.samples_put for stub in running.workers) <= 2 * workers
        with pytest.raises(ZeroDivisionError), sender:
            raise ZeroDivisionError
        wait_until(lambda: sum(stub.buffer.samples_put for stub in running.workers) == 20)
        expected = expected_samples(0, 20, workers)
        assert [stub.drain() for stub in running.workers] == expected


@pytest.mark.usefixtures("gather_all")
@given(st.sampled_from([1, 5_000, 20_000]), st.lists(st.booleans(), max_size=80), st.integers(1, 3))
def test_samples_arrive_as_they_were_when_they_were_sent(length, with_step, workers):
    """Their memory is used again at once; some have time steps, and large ones travel alone."""
    with stub_fit(workers) as running:
        with connect_sender(running) as sender:
            expected = send_from_one_memory(sender, length, with_step, workers)
        for stub, samples in zip(running.workers, expected, strict=True):
            assert stub.buffer.samples_put == len(samples)
            stub.buffer.signal_reception_over()
            got = [stub.buffer.get() for _ in samples]
            assert all(sample["x"].eq(sample["x"][0]).all() for sample in got)
            assert [[number, -number, 0, step] for number, step in samples] == [
                [int(sample["x"][0]), int(sample["y"]), *sample[NUMBERS].tolist()] for sample in got
            ]


@pytest.mark.usefixtures("gather_all", "short_pauses")
def test_samples_that_were_gathered_are_not_lost_with_a_worker():
    with stub_fit() as running, connect_sender(running) as sender:
        send_all(sender, range(20))
        wait_until(lambda: running.workers[0].buffer.samples_put == 1)
        running.kill(0)
        running.replace(0)
        with pytest.warns(UserWarning, match="1 samples of this stream are lost"):
            sender.close()
        assert running.coordinator.wait_for("lost") == [1]
        assert running.coordinator.wait_for("finished") == [20]
        assert running.workers[0].drain() == list(range(1, 20))


def test_y_is_optional():
    with stub_fit(2) as running, connect_sender(running) as sender:
        sender.send(np.array([1.0]), 2)
        sender.send(3.0)
        sender.close()
        _, x, y = running.workers[0].buffer.get().values()
        assert (x.tolist(), y.tolist(), x.dtype, y.dtype) == ([1.0], 2, torch.float64, torch.int64)
        _, x = running.workers[1].buffer.get().values()
        assert x.item() == 3.0


@given(st.lists(st.integers(0, STEPS), min_size=1, max_size=4), st.integers(1, 3), st.booleans())
def test_a_named_sender_continues_where_it_was(stops, workers, paired):
    with stub_fit(workers, paired=paired) as running:
        most = 0
        for stop in [*stops, STEPS]:
            with connect_sender(running, "solver") as sender:
                assert sender.delivered <= most
                send_all(sender, range(stop), paired=paired)
                most = max(most, stop)
        assert set(running.coordinator.received("name")) == {"solver"}
        expected = expected_samples(0, STEPS, workers, whole=paired)
        assert [stub.buffer.samples_put for stub in running.workers] == list(map(len, expected))


@given(
    st.integers(0, STEPS),
    st.lists(st.tuples(st.integers(0, STEPS), st.booleans()), max_size=3),
    st.integers(1, 3),
    st.booleans(),
)
def test_only_delivered_samples_may_be_skipped(before, ways, workers, paired):
    with stub_fit(workers, paired=paired, senders=2) as running:
        with connect_sender(running, "solver") as sender:
            send_all(sender, range(before), paired=paired)
        with connect_sender(running, "solver") as sender:
            delivered = sender.delivered
            number = 0
            assert delivered == before
            for skipped, sends in [*ways, (delivered, False)]:
                skipped = min(skipped, delivered - number)
                for wrong in (-1, delivered - number + 1):
                    were = f"{delivered - number} were delivered"
                    words = rf"skip\({wrong}\).* {were} .* skipped; send the others"
                    with pytest.raises(ValueError, match=words):
                        sender.skip(wrong)
                sender.skip(skipped)
                number += skipped
                if sends and number < delivered:  # sending it again is allowed, too
                    send_all(sender, [number], paired=paired)
                    number += 1
            send_all(sender, range(delivered, STEPS), paired=paired)
        assert running.coordinator.wait_for("finished", 2) == [before, STEPS]
        turn = expected_samples(0, STEPS, workers, whole=paired)
        assert [stub.buffer.samples_put for stub in running.workers] == list(map(len, turn))
        if not paired:
            assert [stub.drain() for stub in running.workers] == turn
