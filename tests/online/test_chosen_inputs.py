"""Fits whose inputs a sampler chooses: what it sees, that training keeps its bits, and that runs
repeat.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import (
    BreedInputs,
    BufferSpec,
    InputSampler,
    Merge,
    OGASInputs,
    Simulations,
    SpacedInputs,
)
from tests.helpers.models import ADAM, SGD, assert_same_bits, mlp
from tests.online.fits import FIFO, build_trainer, online
from tests.online.simulations import Fault, kill_process, pairing, wait_for_file

STEPS = 7


def waves(value):
    """Yield seven samples of a simulation."""
    frequency = value["f"] if isinstance(value, dict) else float(np.ravel(value)[0])
    for step in range(STEPS):
        x = np.array([frequency, step / STEPS], np.float32)
        yield x, np.sin(3 * x[:1] * x[1:])


def three_times(value):
    return np.array([[float(value[0]), step / STEPS] for step in (0, 3, 6)], np.float32)


class Listed(InputSampler):
    """Chooses the items of a list, and keeps a copy of the table at every draw."""

    def __init__(self, items, predicts=False):
        self.items = list(items)
        self.tables = []
        self.predicted = []
        self.predicts = predicts

    def next(self, table):
        columns = "number", "complete", "trained", "loss", "first_loss", "excess"
        self.tables.append(
            {name: getattr(table, name).copy() for name in columns} | {"inputs": [*table.inputs]}
        )
        if self.predicts:
            x = np.full((3, 2), 0.5, np.float32)
            self.predicted.append(table.predict(x))
            np.testing.assert_array_equal(table.predict(x, copies=1), self.predicted[-1][-1:])
        drawn = len(table.inputs)
        return self.items[drawn] if drawn < len(self.items) else None

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Blind(Listed):
    needs_losses = False


def wave_net():
    return mlp(inputs=2, outputs=1)


def fit(
    engine,
    sampler,
    simulate=waves,
    net=None,
    optimizer=ADAM,
    loss="mse",
    workers=1,
    lockstep=True,
    **options,
):
    step = options.pop("training_step", None)
    trainer = build_trainer(engine, workers, net or wave_net(), optimizer, loss, training_step=step)
    count = options.pop("count", 1)
    pairs = options.pop("pairing", None)
    simulations = Simulations(simulate, sampler, count=count, pairing=pairs, lockstep=lockstep)
    defaults = {"buffer": FIFO, "batch_size": 5, "merge": Merge(every=2), "progress": False}
    trainer.fit_online(simulations, **(defaults | options))
    return trainer


def test_the_table_has_the_losses_of_a_plain_loop(local):
    """In lockstep all full batches are reported: loss and excess of each simulation are those of a
    plain loop.
    """
    inputs = [0.3, 0.9, 2.0, 1.1]
    sampler = Listed(inputs)
    trainer = fit(local, sampler)
    tables = sampler.tables
    assert [len(each["inputs"]) for each in tables] == [0, 1, 2, 3, 4]
    assert [each["trained"].sum() for each in tables] == [0, 5, 10, 20, 25]
    assert all(
        each["complete"].all() and each["inputs"] == inputs[:n] for n, each in enumerate(tables)
    )
    torch.manual_seed(3)
    net = wave_net()
    plain = torch.optim.Adam(net.parameters(), lr=0.01)
    rows = [row for value in inputs for row in waves(value)]
    loss = np.full(28, np.nan)
    excess = np.zeros(28)
    for start in range(0, 25, 5):
        x, y = (
            torch.from_numpy(np.stack(part)) for part in zip(*rows[start : start + 5], strict=True)
        )
        losses = (net(x) - y).square().mean(1)
        plain.zero_grad()
        losses.mean().backward()
        plain.step()
        values = losses.detach().double().numpy()
        loss[start : start + 5] = values
        excess[start : start + 5] = np.maximum(0, (values - values.mean()) / values.std())
    np.testing.assert_allclose(tables[-1]["loss"], np.nanmean(loss.reshape(4, 7), 1), rtol=1e-4)
    np.testing.assert_array_equal(tables[-1]["first_loss"], tables[-1]["loss"])  # trained once
    np.testing.assert_allclose(
        tables[-1]["excess"], excess.reshape(4, 7).sum(1), rtol=1e-3, atol=1e-4
    )
    drawn = [each for record in trainer.history for each in record.get("inputs", ())]
    assert drawn == [
        {"simulation": n, "input": value, "origin": ""} for n, value in enumerate(inputs)
    ]


@pytest.mark.parametrize("needs", [Listed, Blind])
def test_a_sampler_changes_no_bit_of_training(local, needs):
    inputs = [0.3, 0.9, 2.0]
    plain = build_trainer(local, 1, wave_net(), ADAM, "mse")
    online(plain, waves, inputs, every=2)
    sampler = needs(inputs)
    ours = fit(local, sampler)
    assert_same_bits(ours.get_parameters(), plain.get_parameters())
    assert np.isfinite(sampler.tables[-1]["loss"]).all() == (needs is Listed)


def spaced():
    return SpacedInputs([(0, 3)], 14, three_times, seed=4), [*["first"] * 10, *["far and hard"] * 4]


def mixed():
    sampler = SpacedInputs([(0, 3)], 14, three_times, uniform=0.5, seed=4)
    return sampler, [*["first"] * 10, *["uniform", "far and hard"] * 2]


def breed():
    sampler = BreedInputs([(0, 3)], 14, start=1.0, end=1.0, seed=4)
    return sampler, [*["uniform"] * 10, *["bred"] * 4]


def ogas():
    # The eleventh simulation is the first that begins when ten have a loss.
    sampler = OGASInputs([(0, 3)], 14, period=11, start=1.0, end=1.0, steps=2, seed=4)
    return sampler, [*["uniform"] * 11, *["bred"] * 3]


@pytest.mark.parametrize("make", [spaced, mixed, breed, ogas])
def test_two_runs_in_lockstep_choose_the_same_inputs_and_have_the_same_bits(local, make):
    _, origins = make()
    runs = [fit(local, make()[0]) for _ in range(2)]
    assert_same_bits(*(run.get_parameters() for run in runs))
    first, second = (
        [each for record in run.history for each in record.get("inputs", ())] for run in runs
    )
    assert first == second
    assert [draw["origin"] for draw in first] == origins


@pytest.mark.parametrize("kind", ["FIRO", "Reservoir", "BatchReservoir"])
def test_every_buffer_is_waited_for(local, kind):
    """Also one that gives nothing below its threshold."""
    sampler = Listed([0.5] * 6)
    fit(local, sampler, buffer=BufferSpec(kind, 40, threshold=12))
    assert sampler.tables[-1]["trained"].sum() >= 6 * STEPS - 12


def test_workers_put_their_losses_together(local):
    """Every sample counts once, whichever worker trained it, with simulations that run at the same
    time.
    """
    sampler = Listed([0.5, 1.0, 1.5, 2.0])
    fit(local, sampler, workers=2, count=2, batch_size=1)
    last = sampler.tables[-1]
    ended = last["complete"]
    assert ended.sum() >= 3  # the last draw waits for one of two
    assert (last["trained"] <= STEPS).all()
    # Another may have ended since the workers had trained all.
    assert (last["trained"][ended] == STEPS).sum() >= 2
    np.testing.assert_array_equal(np.isfinite(last["loss"]), last["trained"] > 0)


def test_pairs_count_for_their_simulation(local):
    def steps(value):
        for step in range(4):
            yield step, np.array([value, step], np.float32), np.float32(value * step)

    spec = BufferSpec("SimPairedReservoir", 40, sweep_size=5, nb_time_steps=4, threshold=3)
    sampler = Listed([0.5, 1.0])
    fit(local, sampler, steps, nn.Linear(5, 1), SGD, buffer=spec, batch_size=3, pairing=pairing)
    assert sampler.tables[-1]["trained"].sum() >= 3
    assert np.isfinite(sampler.tables[-1]["loss"][0])


def test_predictions_are_of_the_global_parameters(local):
    """The newest copy is that of a plain loop's batches so far, and earlier draws' copies come
    before it.
    """
    sampler = Listed([0.3, 0.9], predicts=True)
    trainer = fit(local, sampler, merge=Merge(every=1))
    assert [each.shape for each in sampler.predicted] == [(1, 3, 1), (2, 3, 1), (3, 3, 1)]
    np.testing.assert_array_equal(sampler.predicted[2][:2], sampler.predicted[1])
    whole = build_trainer(local, 1, wave_net(), ADAM, "mse")
    np.testing.assert_allclose(
        sampler.predicted[0][0], whole.predict(np.full((3, 2), 0.5, np.float32)), rtol=1e-6
    )
    assert len(trainer.history)


class CountsThreads(nn.Module):
    """Adds how many threads torch uses."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.weight * x[:, :1] + torch.get_num_threads()


def test_predictions_leave_the_other_cores_to_the_workers(local):
    sampler = Listed([0.3], predicts=True)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        fit(local, sampler, net=CountsThreads(), optimizer=SGD | {"lr": 0.0})
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert {float(value) for each in sampler.predicted for value in each.ravel()} == {1.0}


def squared(output, target):
    return (output - target).square()


def own_step(model, batch, context):
    x, y = batch
    losses = squared(model(x), y).mean(1)
    return {"loss": losses.mean(), "losses": losses}


def without_losses(model, batch, context):
    return own_step(model, batch, context)["loss"]


def test_a_training_step_may_return_its_losses(local):
    ours = Listed([0.3, 0.9])
    plain = Listed([0.3, 0.9])
    fit(local, ours, loss=None, training_step=own_step)
    fit(local, plain)
    np.testing.assert_allclose(ours.tables[-1]["loss"], plain.tables[-1]["loss"])


def mean_only(output, target):
    return squared(output, target).mean()


def test_a_loss_without_losses_of_samples_is_an_error_before_any_task(local, raises):
    with raises(ValueError, "the loss mean_only returns one number for a batch"):
        fit(local, Listed([0.3]), simulate=None.__ne__, loss=mean_only)
    fit(local, Blind([0.3]), loss=mean_only)
    with raises(
        ValueError, ("a sampler of inputs needs the loss of each of 5 samples, and got None")
    ):
        fit(local, Listed([0.3]), loss=None, training_step=without_losses)


@pytest.mark.parametrize(
    ("items", "error", "name"),
    [
        ([object()], TypeError, "the input that Listed returned is a builtins.object"),
        ([{"a": {1, 2}}], TypeError, "the input that Listed returned/a is a builtins.set"),
        ([], ValueError, "Listed returned no input at all"),
    ],
)
def test_inputs_that_no_save_can_hold_are_errors(local, raises, items, error, name):
    with raises(error, name):
        fit(local, Listed(items))


def test_inputs_may_be_dicts_and_arrays(local):
    items = [{"f": 0.5}, np.array([1.5]), (0.25,)]
    trainer = fit(local, Listed(items))
    drawn = [each["input"] for record in trainer.history for each in record.get("inputs", ())]
    assert drawn == [{"f": 0.5}, [1.5], (0.25,)]


def test_a_worker_that_dies_keeps_what_it_knows(local, tmp_path):
    class Dies(nn.Sequential):
        fault = Fault(17, kill_process, tmp_path)

        def forward(self, x):
            if self.training:
                self.fault([int(round(1000 * value)) for value in x[:, 0].tolist()])
            return super().forward(x)

    net = Dies(*wave_net())
    sampler = Listed([0.3, 0.9, 0.017, 1.2])
    fit(local, sampler, net=net, checkpoint_every=0.001)
    assert Dies.fault.count == 1
    last = sampler.tables[-1]
    assert last["trained"].sum() >= 25
    assert np.isfinite(last["loss"]).all()


@dataclass(frozen=True)
class FailsForNegativeInputs:
    """Fails once the sampler has said that there are no more inputs."""

    folder: Path

    def __call__(self, value):
        if value < 0:
            wait_for_file(self.folder / "no more")
            raise TypeError("no solution")  # it is not tried again
        yield np.float32([value, 0]), np.float32([0])


class ReplacesFailed(InputSampler):
    """Chooses inputs until three simulations have not failed, a negative one first."""

    needs_losses = False

    def __init__(self, folder):
        self.folder = folder
        self.failed = []

    def next(self, table):
        self.failed.append(table.failed.tolist())
        if len(table) - table.failed.sum() == 3:
            (self.folder / "no more").touch()
            return None
        return len(table) or -1

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_a_sampler_is_told_of_simulations_that_failed_and_may_replace_them(local, tmp_path):
    sampler = ReplacesFailed(tmp_path)
    trainer = build_trainer(local, 1, nn.Linear(2, 1), SGD, "mse")
    with pytest.warns(UserWarning, match="no solution"):
        online(trainer, FailsForNegativeInputs(tmp_path), sampler, count=2)
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 3, "failed": 1}
    no_failure = [False, False, False]
    assert sampler.failed[:4] == [[], no_failure[:1], no_failure[:2], no_failure]
    assert sampler.failed[-1] == [True, *no_failure]
