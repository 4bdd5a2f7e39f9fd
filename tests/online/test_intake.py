"""Snapshots are consistent at any moment; which samples the buffer copies."""

import pickle
import queue
import threading
from contextlib import suppress

import numpy as np
import pytest

from tests.buffers.kinds import STEPS, Thread, make, numbers
from tests.helpers.waiting import wait_until
from tests.online.sample_streams import send_stream


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("kind", "capacity"), [("FIFO", 20), ("FIRO", 20), ("Reservoir", 90)])
def test_a_snapshot_and_repeated_streams_give_each_sample_once(make_stub, kind, capacity, seed):
    streams = 3
    samples = 30
    random = np.random.default_rng(seed)
    stub = make_stub(make(kind, capacity, seed=seed))
    order = []
    stop = threading.Event()

    def consume():
        while not stop.is_set():
            with suppress(queue.Empty):
                order.append(numbers(stub.buffer.get(timeout=0.01))[0])

    running = [Thread(send_stream, stub, number, samples) for number in range(streams)]
    consuming = Thread(consume)
    snapshots = []
    for moment in [*sorted(random.integers(streams * samples, size=6).tolist()), streams * samples]:
        wait_until(lambda moment=moment: stub.buffer.samples_put >= moment)
        snapshots.append(pickle.loads(pickle.dumps(stub.receiver.snapshot())))
    for sending in running:
        sending.result()
    stop.set()
    consuming.result()
    for state, received in snapshots:
        assert sum(received.values()) == state["usage"]["put"]
    for state, received in (snapshots[0], snapshots[int(random.integers(6))], snapshots[-1]):
        buffer = make(kind, capacity, seed=seed)
        buffer.load_state_dict(state)
        again = make_stub(buffer, offsets=received)
        threads = [Thread(send_stream, again, number, samples) for number in range(streams)]
        got = []
        if kind != "Reservoir":  # which holds all of them
            had = order[: state["usage"]["got"]]
            got = had + [numbers(buffer.get())[0] for _ in range(streams * samples - len(had))]
        for thread in threads:
            thread.result()
        assert sorted(got + again.drain()) == [
            100 * number + n for number in range(streams) for n in range(samples)
        ]
        assert again.receiver.snapshot()[1] == dict.fromkeys(range(streams), samples)


def test_a_snapshot_of_pairs_continues_with_missing_samples(make_stub):
    stub = make_stub(make("SimPairedReservoir", 40), paired=True)
    for number, samples in enumerate((3, 5, STEPS)):
        send_stream(stub, number, samples, paired=True)
    state, received = stub.receiver.snapshot()
    assert received == {0: 3, 1: 5, 2: STEPS}
    buffer = make("SimPairedReservoir", 40)
    buffer.load_state_dict(state)
    again = make_stub(buffer, paired=True, offsets=received)
    for number in range(4):
        send_stream(again, number, STEPS, paired=True)
    assert len(buffer) == buffer.samples_put == 4 * STEPS


def test_only_a_sample_alone_in_its_message_is_handed_over(make_stub, monkeypatch):
    """The memory of others is that of a whole message, or was joined."""
    stub = make_stub(make("FIFO", 9))
    put_many = stub.buffer.put_many
    copied = []

    def note(samples, **options):
        copied.append((len(samples["x"]), options["copy"]))
        put_many(samples, **options)

    monkeypatch.setattr(stub.buffer, "put_many", note)
    with stub.connect(0) as connection:
        connection.send(0)
        connection.send_together([1, 2])
        connection.send_together([2, 3])  # of which the first is known
        wait_until(lambda: stub.buffer.samples_put == 4)
        assert "ended" in connection.end()
    assert copied[0] == (1, False)
    assert all(copy for _, copy in copied[1:])
    assert stub.drain() == [0, 1, 2, 3]
