"""Callbacks that use the network given to ``build``, which no fit trains, are warned of."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from compss_train.callbacks import Callback, WorkerCallback
from tests.helpers.models import SGD, mlp, state_arrays
from tests.helpers.small_fits import fit, trainer_of

UNTRAINED = mlp()


class ByRound(Callback):
    def on_round_end(self, trainer, record):
        self.saved = state_arrays(UNTRAINED)


@dataclass
class AtTheEnd(Callback):
    held: object = None
    trainer: object = None

    def on_fit_start(self, trainer, total_samples):
        self.trainer = trainer

    def on_fit_end(self, trainer):
        self.last = (self.held, self.trainer)


class NotUsing(AtTheEnd):
    """Holds what no hook uses."""

    def on_fit_end(self, trainer):
        pass


class Loading(ByRound):
    """Keeps the network that it holds up to date."""

    def on_round_end(self, trainer, record):
        UNTRAINED.load_state_dict(trainer.model().state_dict())


def fit_given(*callbacks, net=UNTRAINED):
    trainer = trainer_of(net=net, optimizer=SGD)
    fit(trainer, *callbacks)
    return trainer


@pytest.mark.parametrize(
    "callback", [ByRound, lambda: AtTheEnd([UNTRAINED]), lambda: AtTheEnd(UNTRAINED[0])]
)
def test_a_callback_that_uses_the_network_that_was_given_is_warned_of_once(callback):
    match = r"given to build.* still as it was: use trainer\.model\(\)"
    with pytest.warns(UserWarning, match=match) as told:
        fit_given(callback())
    assert len(told) == 1


@pytest.mark.filterwarnings("error")
def test_other_uses_of_networks_are_not_warned_of():
    fit_given(AtTheEnd(mlp()), AtTheEnd(), Loading(), NotUsing(UNTRAINED))
    fit_given(ByRound(), net=mlp())
    again = AtTheEnd()
    fit_given(again)
    fit_given(again)  # which holds a trainer that knows the network


OPTIMIZER = torch.optim.SGD(UNTRAINED.parameters(), lr=0.1)
SCHEDULE = StepLR(OPTIMIZER, 1)


class StepsSchedule(Callback):
    def on_round_end(self, trainer, record):
        SCHEDULE.step()


class SetsRate(Callback):
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def on_round_end(self, trainer, record):
        self.optimizer.param_groups[0]["lr"] /= 2


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("callback", [StepsSchedule, lambda: SetsRate(OPTIMIZER)])
def test_a_callback_that_uses_the_optimizer_that_was_given_is_warned_of(callback):
    trainer = trainer_of(net=UNTRAINED, optimizer=OPTIMIZER)
    with pytest.warns(
        UserWarning, match=r"optimizer that was given to build.*\.set_hyperparam"
    ) as told:
        fit(trainer, callback())
    assert len([warning for warning in told if "build" in f"{warning.message}"]) == 1


def by_global(model, batch, context):
    OPTIMIZER.zero_grad()
    return cross_entropy(model, batch)


def schedule_by_global(model, batch, context):
    SCHEDULE.step()
    return cross_entropy(model, batch)


def cross_entropy(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def by_variable(optimizer):
    def step(model, batch, context):
        optimizer.zero_grad()
        return cross_entropy(model, batch)

    return step


def by_inner_function(optimizer):
    step = by_variable(optimizer)
    return lambda *arguments: step(*arguments)


class Experiment:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def training_step(self, model, batch, context):
        self.optimizer.zero_grad()
        return cross_entropy(model, batch)

    def other_step(self, model, batch, context):
        return cross_entropy(model, batch)

    __call__ = training_step


STEPS = {
    "global variable": lambda optimizer: by_global,
    "schedule": lambda optimizer: schedule_by_global,
    "variable": by_variable,
    "inner function": by_inner_function,
    "method": lambda optimizer: Experiment(optimizer).training_step,
    "object": Experiment,
}


def built(optimizer, step, net=UNTRAINED):
    trainer_of(net=net, optimizer=optimizer, loss=None, metric=None, training_step=step)


@pytest.mark.parametrize("kind", STEPS)
def test_a_step_that_uses_the_optimizer_that_was_given_is_an_error(kind):
    match = r"training_step uses the optimizer that was given to build, .* leave them out"
    with pytest.raises(ValueError, match=match):
        built(OPTIMIZER, STEPS[kind](OPTIMIZER))
    with pytest.raises(ValueError, match=match):
        built({"net": OPTIMIZER}, STEPS[kind](OPTIMIZER), nn.ModuleDict({"net": UNTRAINED}))
    other = torch.optim.SGD(UNTRAINED.parameters(), lr=0.1)
    built(SGD, STEPS[kind](other))


def test_the_object_of_a_step_may_hold_the_optimizer():
    built(OPTIMIZER, Experiment(OPTIMIZER).other_step)


class ZeroGrad(WorkerCallback):
    def on_batch_start(self, context):
        OPTIMIZER.zero_grad()


def test_a_worker_callback_that_uses_the_optimizer_that_was_given_is_an_error():
    trainer = trainer_of(net=UNTRAINED, optimizer=OPTIMIZER)
    with pytest.raises(ValueError, match=r"ZeroGrad uses the optimizer.* context\.optimizer"):
        fit(trainer, ZeroGrad())
