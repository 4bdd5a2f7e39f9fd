"""What workers know of the losses of samples: the first and the newest of each, and their excess in
all batches, whatever the reports between.
"""

import queue
from contextlib import suppress

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from compss_train.buffers import Reservoir
from compss_train.model.value_encoding import decode_value, encode_value
from compss_train.online.sample_losses import SampleLosses

NUMBERS = st.integers(0, 2) | st.just(2**62)
LOSSES = st.floats(0, 100, width=32) | st.just(float("nan"))
BATCHES = st.lists(
    st.lists(st.tuples(NUMBERS, NUMBERS, LOSSES), min_size=1, max_size=6), max_size=8
)


def add(known, batch):
    simulations, steps, losses = zip(*batch, strict=True)
    known.add(torch.tensor(losses), np.array(simulations), np.array(steps))


def model_of(batches):
    """Return by simulation: samples trained, excess, and newest and first loss of each step."""
    trained = {}
    excess = {}
    losses_of_steps = {}
    for batch in batches:
        losses = np.array([loss for _, _, loss in batch])
        counted = losses[np.isfinite(losses)]
        spread = counted.std() if len(counted) else 0
        for simulation, step, loss in batch:
            trained[simulation] = trained.get(simulation, 0) + 1
            if np.isfinite(loss):
                above = max(0.0, (loss - counted.mean()) / spread) if spread else 0.0
                excess[simulation] = excess.get(simulation, 0) + above
                known = losses_of_steps.setdefault(simulation, {})
                _, first = known.get(step, (loss, loss))
                known[step] = loss, first
    return trained, excess, losses_of_steps


@given(BATCHES, st.integers(0, 8), st.booleans())
def test_a_report_has_the_first_and_newest_of_every_sample(batches, middle, restarts):
    """Batches that are reported, or saved and restored, between them do not change what the last
    report says.
    """
    known = SampleLosses()
    once = SampleLosses()
    for number, batch in enumerate(batches):
        add(known, batch)
        add(once, batch)
        if number == middle:
            known.report()
        if restarts:
            known = SampleLosses(decode_value(encode_value(known.state_dict())))
    for simulation in {simulation for batch in batches for simulation, _, _ in batch}:
        for each in (known, once):
            # Changes no loss.
            each.add(torch.tensor([float("nan")]), np.array([simulation]), np.array([0]))
    ours = known.report()
    np.testing.assert_array_equal(ours, once.report())  # the same bits
    trained, excess, losses_of_steps = model_of(batches)
    assert ours[:, 0].tolist() == sorted(trained)
    for number, count, above, samples, *sums in ours.tolist():
        values = np.array([*losses_of_steps.get(number, {}).values()]).reshape(-1, 2)
        assert (count, samples) == (trained[number] + 1, len(values))
        np.testing.assert_allclose(above, excess.get(number, 0), atol=1e-12)
        np.testing.assert_allclose(sums, values.sum(0))
    assert known.report().shape == (0, 6)


@given(BATCHES.filter(len))
def test_what_is_saved_stays_as_it_was(batches):
    """A save is written while training goes on, and what it restores may be read-only."""
    known = SampleLosses()
    for batch in batches:
        add(known, batch)
        saved = known.state_dict()
        for array in saved.values():
            array.flags.writeable = False
        before = encode_value(saved)
        add(known, batch)
        known.report()
        assert torch.equal(encode_value(saved), before)
        known = SampleLosses(saved)


@given(BATCHES, st.sets(st.integers(0, 7)))
def test_samples_that_do_not_come_again_are_summed_up(batches, moments):
    known = SampleLosses()
    once = SampleLosses()
    for number, batch in enumerate(batches):
        add(known, batch)
        add(once, batch)
        if number in moments:
            later = {each[:2] for rest in batches[number + 1 :] for each in rest}
            known.settle(np.array(sorted(later), np.int64).reshape(-1, 2))
            assert len(known.state_dict()["samples"]) <= len(later)
            known = SampleLosses(decode_value(encode_value(known.state_dict())))
    for each in (known, once):
        for simulation in {simulation for batch in batches for simulation, _, _ in batch}:
            each.add(torch.tensor([float("nan")]), np.array([simulation]), np.array([0]))
    np.testing.assert_allclose(known.report(), once.report())


def test_a_pair_counts_once():
    known = SampleLosses()
    known.add(torch.tensor([1.0, 3.0]), np.array([[7, 7], [7, 7]]), np.array([[0, 2], [1, 2]]))
    assert known.report().tolist() == [[7, 2, 1, 2, 4, 4]]


@given(st.data())
def test_a_sample_that_leaves_the_buffer_while_its_batch_is_trained_counts_once(data):
    """Puts evict samples of a reservoir between any two steps of the worker: draw, train, sum
    up.
    """
    buffer = Reservoir(4, 0, seed=0)
    known = SampleLosses()
    losses = {}
    first_losses = {}
    sent = iter(range(60))

    def put(most):
        for _ in range(data.draw(st.integers(0, most))):
            with suppress(queue.Full):
                buffer.put({"numbers": np.array([0, next(sent)])}, block=False)

    buffer.put({"numbers": np.array([0, next(sent)])})
    for number in range(data.draw(st.integers(1, 8))):
        drawn = buffer.get_batch(3)["numbers"]
        put(2)
        loss = torch.arange(3.0) + number
        known.add(loss, *drawn.T)
        for step, value in zip(drawn[:, 1].tolist(), loss.tolist(), strict=True):
            losses[step] = value
            first_losses.setdefault(step, value)
        put(2)
        if data.draw(st.booleans()):
            known.settle(buffer.keys("numbers"))
    [[_, _, _, samples, *totals]] = known.report()
    assert samples == len(losses)
    assert totals == [sum(losses.values()), sum(first_losses.values())]
