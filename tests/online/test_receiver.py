"""Receivers put every sample once, with interrupted connections and full buffers."""

from contextlib import suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compss_train.buffers import BufferDrainedError
from compss_train.online.intake import NUMBERS
from compss_train.online.routing import Routing
from tests.buffers.kinds import Thread, make
from tests.helpers.waiting import wait_until
from tests.net.plain_clients import no_threads_left
from tests.online.sample_streams import number_sample, send_stream, simulation_stream
from tests.online.stub_fits import StubWorker, stub_fit

# Every sample is put once


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8), st.booleans()), max_size=4),
    st.booleans(),
)
def test_each_sample_of_an_interrupted_and_repeated_stream_is_put_once(cuts, paired):
    with no_threads_left():
        stub = StubWorker(make("SimPairedReservoir" if paired else "FIFO", 50), paired=paired)
        left = []
        try:
            for samples, cut, dead in cuts:
                connection = stub.connect(3)
                numbers = range(connection.offset, samples)
                connection.send_all(numbers[:cut], paired=True)
                if dead:
                    connection.close()
                else:  # thought dead: its remaining samples arrive while the next one sends
                    left.append((connection, numbers[cut:]))
            threads = [
                Thread(connection.send_all, numbers, paired=True) for connection, numbers in left
            ]
            with stub.connect(3) as connection:
                connection.send_all(range(connection.offset, 8), paired=True)
                assert "ended" in connection.end()
            for thread, (connection, _) in zip(threads, left, strict=True):
                thread.result()
                connection.close()
            assert stub.buffer.samples_put == 8
            if not paired:
                assert stub.drain() == list(range(300, 308))
        finally:
            stub.close()


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=12),
    st.integers(1, 3),
    st.integers(3, 9),
    st.booleans(),
)
def test_messages_of_several_samples_are_put_once_and_in_order(messages, workers, capacity, own):
    """Stream 3 sends messages to the last of several workers, and some samples again."""
    routing = Routing(workers, whole=False)
    worker = workers - 1
    first = routing.next_sample(worker, 3, 0)
    with no_threads_left():
        stub = StubWorker(make("FIFO", capacity), number=worker, workers=workers)
        got = []
        taking = Thread(lambda: got.extend(taken(stub.buffer)))
        steps = []
        end = 0
        try:
            with stub.connect(3) as connection:
                connection.send(first)  # what tells the size of samples
                steps.append(first)
                end = 1
                for start, count in messages:
                    samples = routing.numbers(first + min(start, end) * workers, count)
                    fields = {"steps": [7 + sample for sample in samples]} if own else {}
                    connection.send_together(samples, **fields)
                    later = samples[max(0, end - min(start, end)) :]
                    steps += [7 + sample if own else sample for sample in later]
                    end += len(later)
                assert "ended" in connection.end()
            stub.buffer.signal_reception_over()
            taking.result()
        finally:
            stub.close()
        assert [value for value, _ in got] == [300 + first + n * workers for n in range(end)]
        assert [numbers for _, numbers in got] == [[3, step] for step in steps]


def taken(buffer):
    """Yield each sample, and its simulation and step, until the end of reception."""
    with suppress(BufferDrainedError):
        while True:
            sample = buffer.get()
            yield int(sample["x"][0]), sample[NUMBERS].tolist()


# Offsets advance by what comes


@given(
    worker=st.integers(0, 2),
    losses=st.lists(st.integers(0, 12), max_size=2),
    samples=st.lists(st.integers(0, 12), max_size=12),
)
def test_offsets_advance_by_what_comes_and_a_gap_ends_the_connection(worker, losses, samples):
    """Stream 5 says below which samples some are lost, then sends samples to a worker of three."""
    routing = Routing(3, whole=False)
    with no_threads_left():
        stub = StubWorker(make("FIFO", 50), number=worker, workers=3)
        put = []
        offset = 0
        try:
            with stub.connect(5) as connection:
                for end in losses:
                    connection.connection.send({"lost": end})
                    offset = max(offset, end)
                for sample in samples:
                    connection.send(sample)
                    if routing.worker_of(5, sample) != worker:
                        error = connection.read("error")["error"]
                        assert f"sample {sample} of stream 5 is for worker" in error
                        break
                    expected = routing.next_sample(worker, 5, offset)
                    if sample > expected:
                        error = connection.read("error")["error"]
                        assert f"a gap in stream 5: sample {sample} came where" in error
                        break
                    if sample == expected:
                        put.append(500 + sample)
                        offset = sample + 1
                wait_until(lambda: stub.buffer.samples_put == len(put))
            if offset:
                wait_until(lambda: stub.receiver.snapshot()[1] == {5: offset})
            assert stub.drain() == put
        finally:
            stub.close()


# Full buffers and bursts


@pytest.mark.parametrize(
    ("length", "samples", "ahead"), [(1, 600, 256), (2**15, 120, 64), (2**19, 20, 4)]
)
def test_a_full_buffer_blocks_the_sender(length, samples, ahead):
    sample = torch.zeros(length)
    capacity = 3
    with (
        stub_fit(capacity=capacity) as running,
        simulation_stream(running.coordinator, 0) as opened,
    ):
        buffer = running.workers[0].buffer

        def send_all():
            for number in range(samples):
                opened.send((sample + number,), None)
            opened.finish()

        sending = Thread(send_all)
        got = []
        for taken in (0, 2, 5):
            got += [int(buffer.get()["x"][0]) for _ in range(taken)]
            put = len(got) + capacity
            wait_until(lambda put=put: buffer.samples_put == put)
            # Credit comes in halves of what may be ahead.
            wait_until(lambda put=put: put + ahead - ahead // 2 < opened.sent)
            assert opened.sent <= put + ahead
            assert buffer.samples_put == put
        got += [int(buffer.get()["x"][0]) for _ in range(samples - len(got))]
        sending.result()
        assert got == list(range(samples))


def test_a_sample_that_its_sender_repeats_at_once_is_put_once(make_stub):
    """A full buffer lets the repetitions wait beside the sample."""
    stub = make_stub(make("FIFO", 3))
    with stub.connect(0) as connection:
        connection.send_all([0, 0, 1, 2, 3, 3, 4, 3, 4, 4, 5, 5])
        ending = Thread(connection.end)
        got = [int(stub.buffer.get()["x"][0]) for _ in range(6)]
        assert "ended" in ending.result()
    assert got == list(range(6))
    assert stub.buffer.samples_put == 6


def test_who_sends_without_credit_is_not_heard(make_stub):
    stub = make_stub(make("FIFO", 3))
    with stub.connect(0) as connection:
        for number in range(300):
            connection.connection.send({"sample": number}, number_sample(number))
        assert "without credit" in connection.read("error")["error"]
    assert stub.receiver.failed is None


def test_running_out_of_memory_is_reported_as_the_workers_failure(make_stub, monkeypatch):
    stub = make_stub(make("FIFO", 9))
    put_many = stub.buffer.put_many
    errors = [MemoryError("no more")]

    def fail_once(*args, **options):
        if errors:
            raise errors.pop()
        put_many(*args, **options)

    monkeypatch.setattr(stub.buffer, "put_many", fail_once)
    with stub.connect(0) as connection:
        connection.send(0)
        assert "no more" in connection.read("error")["error"]
    assert str(stub.receiver.failed) == "no more"
    send_stream(stub, 0, 1)
    assert stub.drain() == [0]
