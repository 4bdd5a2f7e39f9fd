"""Callbacks that run in workers: what they see and measure, their states, and what they may
change.
"""

import math

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from compss_train.callbacks import Callback, Checkpoint, EarlyStopping, WorkerCallback
from tests.helpers.models import SGD, assert_same_bits, mlp
from tests.helpers.plain_loop import OPTIMIZERS, plain_loop
from tests.helpers.small_fits import STILL, X, Y, assert_alike, fit, trainer_of
from tests.helpers.tolerances import sum_error


class Numbers(WorkerCallback):
    """Measures what a loop would measure by itself, and counts its batches."""

    def __init__(self):
        self.batches = 0
        self.hooks = []

    def on_round_start(self, context):
        self.hooks.append("start")
        context.log("round_seen", context.round)

    def on_batch_start(self, context):
        assert context.loss is None
        assert len(context.x) == len(context.y)
        assert context.number == self.batches
        self.hooks.append("before")

    def on_batch_end(self, context):
        self.batches += 1
        self.hooks.append("after")
        context.log("own_loss", context.loss)
        context.log("right", (context.output.argmax(1) == context.y).double().mean())
        assert all(parameter.grad is not None for parameter in context.model.parameters())

    def on_round_end(self, context):
        assert self.hooks == ["start", *["before", "after"] * (len(self.hooks) // 2)]
        assert context.x is None
        assert context.loss is None
        context.log("batches_of_all_rounds", self.batches)

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state):
        self.batches = state["batches"]


def test_what_is_logged_is_in_the_record():
    """Means over samples, as the trainer's own of loss and accuracy."""
    trainer = trainer_of(workers=2)
    fit(trainer, Numbers(), EarlyStopping("own_loss", patience=99), validation_data=(X, Y))
    for number, record in enumerate(trainer.history):
        assert record["own_loss"] == pytest.approx(
            record["loss"], rel=sum_error(np.float64, len(X))
        )
        assert record["right"] == pytest.approx(
            record["accuracy"], abs=sum_error(np.float32, len(X))
        )
        assert record["round_seen"] == number
        for worker in record["workers"]:
            loss = pytest.approx(worker["loss"], rel=sum_error(np.float64, len(X)))
            assert worker["own_loss"] == loss


def test_states_continue_in_later_rounds_and_after_a_resume(tmp_path, shared_local):
    whole = trainer_of()
    resumed = trainer_of()
    local = trainer_of(shared_local)
    fit(whole, Numbers(), Checkpoint(tmp_path, keep=9))
    fit(resumed, Numbers(), resume=tmp_path / "round-000001")
    fit(local, Numbers())
    assert_alike(resumed, whole)
    assert_alike(local, whole)
    states = [state.callbacks["Numbers 1"]["batches"] for state in whole.snapshot().workers]
    assert states == [state.batches for state in whole.snapshot().workers]


@torch.no_grad()
def bound(net):
    for parameter in net.parameters():
        parameter.clamp_(-0.1, 0.1)


class Bounded(WorkerCallback):
    def on_batch_end(self, context):
        bound(context.model)


def test_they_may_change_parameters():
    """As in a plain loop."""
    trainer = trainer_of(workers=1, net=mlp, optimizer=SGD)
    ours = fit(trainer, Bounded(), blocks=1, num_epochs=2, batch_size=19, **STILL)
    assert_same_bits(ours, plain_loop(mlp(), OPTIMIZERS[0][1], X, Y, 1, 3, 2, seed=0, after=bound))


class Raising(WorkerCallback):
    def on_batch_end(self, context):
        if (context.round, context.worker) == (1, 2):
            raise LookupError("no such thing")


def test_an_exception_names_callback_round_and_worker():
    with pytest.raises(LookupError, match="no such thing") as caught:
        fit(trainer_of(), Raising())
    expected = "Raised by the callback Raising, by its on_batch_end, in round 1 on worker 2."
    assert expected in caught.value.__notes__


class Named(WorkerCallback):
    def __init__(self, name, value):
        self.name = name
        self.value = value

    def on_round_end(self, context):
        context.log(self.name, self.value)


class Unpicklable(WorkerCallback):
    def __init__(self):
        self.generator = (number for number in range(3))


class Misnamed(WorkerCallback):
    def on_train_batch_end(self, context):
        pass


class Holding(WorkerCallback):
    def __init__(self, held):
        self.held = held


def test_the_network_that_was_given_is_not_the_one_that_a_worker_trains():
    net = mlp()
    trainer = trainer_of(net=net)
    for held in (net, net[0], [net[0].weight]):
        with pytest.raises(ValueError, match=r"Holding holds the network .*; use context\.model"):
            fit(trainer, Holding(held))
    fit(trainer, Holding(mlp()))


def test_mistakes_are_found():
    with pytest.raises(ValueError, match="'samples' has another meaning in the history"):
        fit(trainer_of(), Named("samples", 3))
    with pytest.raises(TypeError, match=r"'own' was measured as a tensor of shape \(2,\)"):
        fit(trainer_of(), Named("own", torch.ones(2)))
    with pytest.raises(TypeError, match=r"Unpicklable.generator .*cannot be pickled"):
        fit(trainer_of(), Unpicklable())
    with pytest.warns(
        UserWarning, match=r"do not call on_train_batch_end of Misnamed; .* on_batch_end"
    ):
        trainer_of().check_fit(X, Y, num_epochs=1, batch_size=9, callbacks=[Misnamed()])
    with pytest.raises(TypeError, match="not a Callback"):
        fit(trainer_of(), Numbers)
    assert not issubclass(WorkerCallback, Callback)


class Uneven(IterableDataset):
    """Shards of different lengths, which nothing announces."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __iter__(self):
        for number in range(self.lengths[get_worker_info().id]):
            yield X[number], Y[number]


class LogsOfRounds(WorkerCallback):
    """Logs the worker's number, and NaN on workers that have trained on nothing."""

    def __init__(self):
        self.samples = 0

    def on_round_start(self, context):
        context.log("at_start", torch.tensor(float(context.worker)))

    def on_batch_end(self, context):
        self.samples += len(context.x)

    def on_round_end(self, context):
        context.log("at_end", context.worker)
        context.log("mean_batch", self.samples if self.samples else float("nan"))


@pytest.mark.parametrize("lengths", [(3, 9, 14), (5, 0, 20), (0, 0, 4)])
def test_logs_of_a_round_count_by_trained_samples(lengths):
    trainer = trainer_of(workers=3)
    fit(trainer, LogsOfRounds(), data=(Uneven(lengths),), num_epochs=1)
    (record,) = trainer.history
    trained = {worker["worker"]: worker["samples"] for worker in record["workers"]}
    assert sorted(trained.values()) == sorted(lengths)
    mean = sum(number * samples for number, samples in trained.items()) / sum(lengths)
    assert record["at_start"] == record["at_end"] == mean
    assert record["mean_batch"] == sum(samples**2 for samples in lengths) / sum(lengths)
    for worker in record["workers"]:
        expected = pytest.approx(worker["worker"] if worker["samples"] else math.nan, nan_ok=True)
        assert worker["at_start"] == expected
        assert worker["at_end"] == expected
