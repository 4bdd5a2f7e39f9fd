"""The simulation-paired reservoir: pairs, eviction, statistics and invalid samples."""

import queue
from collections import Counter
from itertools import cycle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compss_train.buffers import BufferFullError, SimPairedReservoir, TimeStep
from tests.buffers.kinds import drain, uses_of
from tests.helpers.cases import slow
from tests.helpers.tolerances import chance_of

STEPS = 6
operations = st.lists(
    st.tuples(st.sampled_from(["put", "put", "get"]), st.integers(0, 2), st.integers(1, 4)),
    max_size=40,
)


def step(simulation, number, data=None):
    """Return a time step whose data identify it."""
    return TimeStep(
        simulation, number, torch.tensor(simulation * 100 + number) if data is None else data
    )


def reservoir(capacity, threshold=0, sweep_size=1000, steps=STEPS, seed=0, **options):
    return SimPairedReservoir(capacity, threshold, sweep_size, steps, seed=seed, **options)


def held_in(buffer):
    """Return the keys of the samples held, and the unseen ones among them."""
    state = buffer.state_dict()
    held = list(map(tuple, state["keys"]))
    return set(held), {key for key, seen in zip(held, state["seen"], strict=True) if not seen}


def keys(pairs):
    """Return the (simulation, step) of both samples of each pair, whose data belong to them."""
    both = []
    for part in pairs:
        np.testing.assert_array_equal(part.data.numpy(), part.simulation * 100 + part.step)
        both.append(
            list(zip(np.ravel(part.simulation).tolist(), np.ravel(part.step).tolist(), strict=True))
        )
    for (simulation, first), (other, second) in zip(*both, strict=True):
        assert simulation == other
        assert first < second
    return both[0] + both[1]


def partnered(held):
    sizes = Counter(simulation for simulation, _ in held)
    return {key for key in held if sizes[key[0]] > 1}


def can_evict(held, unseen, nexts):
    """Return whether a seen sample can be evicted.

    It can be if it is no partner of the only unseen sample, or of later ones.
    """
    seen = Counter(simulation for simulation, _ in held - unseen)
    if not partnered(held):
        return bool(seen)  # no get could make room
    unseen = Counter(simulation for simulation, _ in unseen)
    for simulation, number in seen.items():
        sends_more = not unseen[simulation] and nexts[simulation] < STEPS
        partners = 1 if unseen[simulation] == 1 or sends_more else 0
        if number > partners:
            return True
    return False


def drained_keys(buffer, sizes=(1,)):
    size = cycle(sizes)
    return [
        key
        for pairs in drain(lambda: buffer.get_batch(next(size), block=False))
        for key in keys(pairs)
    ]


@given(
    capacity=st.integers(2, 7),
    room=st.integers(0, 9),
    todo=operations,
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    seed=st.integers(0, 9),
)
def test_no_unseen_sample_nor_its_only_partner_is_evicted(capacity, room, todo, sizes, seed):
    buffer = reservoir(capacity, max(0, capacity - room), seed=seed)
    nexts = Counter()
    put = set()
    got = Counter()
    for what, simulation, size in todo:
        held, unseen = held_in(buffer)
        assert unseen == put - set(got)
        assert buffer.unseen == len(unseen) <= len(buffer) == len(held) <= capacity
        ready = len(held) >= buffer.threshold and bool(partnered(held))
        assert buffer.is_ready() == ready
        if what == "get" and ready:
            got.update(keys(buffer.get_batch(size, block=False)))
        elif what == "get":
            with pytest.raises(queue.Empty):
                buffer.get_batch(size, block=False)
        elif nexts[simulation] < STEPS:
            key = (simulation, nexts[simulation])
            if len(held) == capacity and not can_evict(held, unseen, nexts):
                with pytest.raises(
                    BufferFullError, match=None if partnered(held) else ("different simulations")
                ):
                    buffer.put(step(*key), block=False)
                continue
            buffer.put(step(*key), block=False)
            nexts[simulation] += 1
            put.add(key)
            now, _ = held_in(buffer)
            assert key in now
            assert unseen <= now
            if len(held) < capacity:
                assert held < now
            kept_partners = partnered(held) & unseen
            assert kept_partners <= partnered(now)
    held, unseen = held_in(buffer)
    buffer.signal_reception_over()
    drained = drained_keys(buffer, sizes)
    assert set(drained) == partnered(held)
    assert held_in(buffer)[0] == held - partnered(held)
    got.update(drained)
    assert put - set(got) == unseen - partnered(held)
    expected = np.bincount([got[key] for key in put], minlength=1)
    np.testing.assert_array_equal(
        np.trim_zeros(buffer.repetitions(), "b"), np.trim_zeros(expected, "b")
    )


@pytest.mark.parametrize(
    ("sims", "steps", "capacity"), [(3, 5, 10), (5, 10, 20), *slow((10, 20, 100))]
)
def test_a_stream_of_simulations_side_by_side_never_gets_stuck(sims, steps, capacity):
    # The last step of a simulation must find a partner, or it stays unseen and takes its place for
    # good.
    buffer = reservoir(capacity, capacity // 2, steps=steps)
    random = np.random.default_rng(0)
    running = {slot: (slot, 0) for slot in range(sims)}
    started = sims
    put = set()
    got = set()
    while len(put) < 300:
        slot = int(random.integers(sims))
        simulation, number = running[slot]
        try:
            buffer.put(step(simulation, number), block=False)
        except queue.Full:
            got.update(keys(buffer.get_batch(1, block=False)))
            continue
        put.add((simulation, number))
        running[slot] = (simulation, number + 1)
        if number + 1 == steps:
            running[slot] = (started, 0)
            started += 1
        if buffer.is_ready():
            got.update(keys(buffer.get_batch(4, block=False)))
    buffer.signal_reception_over()
    got.update(drained_keys(buffer))
    left = {simulation for simulation, _ in put - got}
    assert left <= {simulation for simulation, _ in running.values()}


def uneven(seed):
    """Return a reservoir that holds many steps of some simulations and few of others."""
    buffer = reservoir(200, steps=30, seed=seed)
    counts = (2, 3, 5, 8, 12, 20, 30)
    for simulation, count in enumerate(counts):
        buffer.put_many([step(simulation, number) for number in range(count)])
    return buffer, counts


@pytest.mark.parametrize("seed", [0, *slow(1, 2)])
def test_simulations_are_used_equally_often_whatever_is_held(seed):
    buffer, counts = uneven(seed)
    first, second = buffer.get_batch(4000)
    uses = np.bincount(first.simulation, minlength=len(counts))
    differences = np.bincount(second.step - first.step, minlength=30)
    assert uses_of(buffer) == dict(enumerate(uses.tolist()))
    np.testing.assert_array_equal(buffer.state_dict()["differences"], differences)
    # Uniform draws would use the largest simulation hundreds of times as often as the smallest.
    assert uses.max() < 1.25 * uses.min()
    random = np.random.default_rng(seed)
    pairs = [
        simulation
        for simulation, count in enumerate(counts)
        for _ in range(count * (count - 1) // 2)
    ]
    uniform = np.bincount(random.choice(pairs, 4000), minlength=len(counts))
    assert variation(uses) < 0.1 * variation(uniform)


@pytest.mark.parametrize("steps", [5, 12, 30])
def test_time_differences_are_covered_more_evenly_than_by_uniform_pairs(steps):
    buffer = reservoir(200, steps=steps)
    random = np.random.default_rng(0)
    for simulation in range(6):
        buffer.put_many([step(simulation, number) for number in range(steps)])
    first, second = buffer.get_batch(3000)
    uniform = [np.ptp(random.choice(steps, 2, replace=False)) for _ in range(3000)]
    drawn, uniform = (
        np.bincount(gaps, minlength=steps)[1:] for gaps in (second.step - first.step, uniform)
    )
    assert variation(drawn) < 0.25 * variation(uniform)
    # Differences drawn less often are preferred: independent draws would spread more.
    assert chance_of(drawn) > 0.999


def variation(counts):
    return counts.std() / counts.mean()


@pytest.mark.parametrize(
    "again", [[step(0, 1)], [step(5, 0), step(0, 1)], [step(5, 0), step(5, 1), step(5, 0)]], ids=str
)
def test_a_time_step_held_already_is_refused_without_changes(again):
    buffer = reservoir(6)
    buffer.put_many([step(0, 0), step(0, 1)])
    before = held_in(buffer), uses_of(buffer), buffer.samples_put
    with pytest.raises(ValueError, match=r"held already|simulation twice"):
        buffer.put_many(again)
    assert (held_in(buffer), uses_of(buffer), buffer.samples_put) == before
    buffer.put_many([step(5, 0), step(5, 1)])
    assert len(buffer) == 4


@pytest.mark.parametrize(
    ("sample", "error", "name"),
    [
        (torch.ones(2), TypeError, "holds TimeStep"),
        ((0, 0, torch.tensor(1)), TypeError, "not tuple"),
        (step(10, 0), ValueError, "simulation="),
        (step(-1, 0), ValueError, "simulation="),
        (step(0, STEPS), ValueError, "step="),
        (step(0, 1.0, torch.tensor(1)), ValueError, "step"),
        (step("1", 1, torch.tensor(1)), ValueError, "simulation"),
        (step(0, 1, torch.ones(3)), ValueError, "a sample of"),
    ],
    ids=str,
)
def test_samples_that_do_not_fit_are_refused_and_change_nothing(sample, error, name, raises):
    buffer = reservoir(4, sweep_size=10)
    buffer.put(step(0, 0))
    for call in (buffer.put, lambda bad: buffer.put_many([step(0, 2), bad])):
        with raises(error, name):
            call(sample)
    assert (len(buffer), buffer.samples_put, uses_of(buffer)) == (1, 1, {0: 0})
