"""Checkpoints of a worker that receives: they agree with what it has at any moment."""

import pickle
import queue
import threading
from contextlib import suppress

import numpy as np
import pytest

from tests.buffers.kinds import STEPS, Hold, Thread, make, numbers, until
from tests.online.sending import run, send


def test_without_checkpoints_nothing_is_kept_for_them(places):
    place = places(make("FIFO", 9), saving=False)
    run(place, 0, 5)
    assert not place.receiver._since_saved
    assert place.drained() == list(range(5))


@pytest.mark.parametrize("waits", [False, True])
def test_streams_can_be_forgotten_at_any_moment(places, waits):
    place = places(make("FIFO", 6))
    for number in range(3):
        run(place, number, 2)
    assert place.receiver.snapshot()[1] == {0: 2, 1: 2, 2: 2}
    if waits:
        connection, _ = place.hello(3)
        send(connection, 3, [0])
        until(lambda: place.buffer._room_made._waiters)
    place.receiver.forget([0, 2, 77])
    assert place.receiver.snapshot()[1] == {1: 2}
    if waits:
        connection.close()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("kind", "capacity"), [("FIFO", 20), ("FIRO", 20), ("Reservoir", 90)])
def test_a_snapshot_at_any_moment_and_a_rerun_give_each_sample_once(places, kind, capacity, seed):
    streams, samples = 3, 30
    random = np.random.default_rng(seed)
    place = places(make(kind, capacity, seed=seed))
    order, stop = [], threading.Event()

    def consume():
        while not stop.is_set():
            with suppress(queue.Empty):
                order.append(numbers(place.buffer.get(timeout=0.01))[0])

    running = [Thread(run, place, number, samples) for number in range(streams)]
    consuming = Thread(consume)
    snapshots = []
    for moment in [*sorted(random.integers(streams * samples, size=6).tolist()), streams * samples]:
        until(lambda moment=moment: place.buffer.samples_put >= moment)
        snapshots.append(pickle.loads(pickle.dumps(place.receiver.snapshot())))
    for each in running:
        each.result()
    stop.set()
    consuming.result()
    for state, received in snapshots:
        assert sum(received.values()) == state["usage"]["put"]
    for state, received in (snapshots[0], snapshots[int(random.integers(6))], snapshots[-1]):
        buffer = make(kind, capacity, seed=seed)
        buffer.load_state_dict(state)
        again = places(buffer, received=received)
        threads = [Thread(run, again, number, samples) for number in range(streams)]
        got = []
        if kind != "Reservoir":  # which holds all of them
            had = order[: state["usage"]["got"]]
            got = had + [numbers(buffer.get())[0] for _ in range(streams * samples - len(had))]
        for each in threads:
            each.result()
        assert sorted(got + again.drained()) == [
            100 * number + n for number in range(streams) for n in range(samples)
        ]
        assert again.receiver.snapshot()[1] == dict.fromkeys(range(streams), samples)


def test_a_sample_that_is_being_put_is_in_neither_part_of_a_snapshot(places):
    place = places(make("FIFO", 9))
    run(place, 0, 2)
    hold = Hold(place.buffer, "_settle")
    running = Thread(run, place, 1, 3)
    hold.entered()
    state, received = place.receiver.snapshot()
    assert (received, state["usage"]["put"]) == ({0: 2}, 2)
    hold.release()
    running.result()
    state, received = place.receiver.snapshot()
    assert (received, state["usage"]["put"]) == ({0: 2, 1: 3}, 5)


def test_a_snapshot_of_pairs_goes_on_with_what_is_missing(places):
    place = places(make("SimPairedReservoir", 40), paired=True)
    for number, samples in enumerate((3, 5, STEPS)):
        run(place, number, samples, paired=True)
    state, received = place.receiver.snapshot()
    assert received == {0: 3, 1: 5, 2: STEPS}
    buffer = make("SimPairedReservoir", 40)
    buffer.load_state_dict(state)
    again = places(buffer, paired=True, received=received)
    for number in range(4):
        run(again, number, STEPS, paired=True)
    assert len(buffer) == buffer.samples_put == 4 * STEPS


def test_what_a_snapshot_gave_does_not_change_afterwards(places):
    place = places(make("FIFO", 9))
    run(place, 0, 2)
    _, received = place.receiver.snapshot()
    received[5] = 5
    run(place, 1, 2)
    assert received == {0: 2, 5: 5}
    assert place.receiver.snapshot()[1] == {0: 2, 1: 2}
    assert place.drained() == [0, 1, 100, 101]
