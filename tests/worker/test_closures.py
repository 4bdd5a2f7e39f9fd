"""Optimizers that evaluate the loss of a batch several times a step, such as LBFGS, have the plain loop's bits."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer, Gradients, Merge
from compss_train.engines.calls import intra_op_threads
from tests.helpers.models import assert_same_bits, awkward_net, blocked, mlp, state_arrays
from tests.helpers.serial_engines import NoTasks
from tests.helpers.small_fits import STILL, X, Y, fit, trainer_of
from tests.training.test_resuming import every_round_resumed


class TwoSteps(torch.optim.SGD):
    """Makes two steps with each batch."""

    def step(self, closure):
        first = closure()
        super().step()
        closure()
        super().step()
        return first


LBFGS = {"optimizer": torch.optim.LBFGS, "lr": 0.3, "max_iter": 4, "history_size": 3}
WOLFE = {**LBFGS, "line_search_fn": "strong_wolfe"}
TWICE = {"optimizer": TwoSteps, "lr": 0.05, "momentum": 0.9}


def plain_loop(net, optimizer, epochs=3, clip=None):
    """Train as torch's documentation says."""
    net = copy.deepcopy(net)
    arguments = {key: value for key, value in optimizer.items() if key != "optimizer"}
    made = optimizer["optimizer"](net.parameters(), **arguments)
    losses = []
    torch.manual_seed(0)

    def closure(x, y):
        made.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        return loss

    with intra_op_threads(1):
        for _ in range(epochs):
            for xs, ys in zip(np.array_split(X, 3), np.array_split(Y, 3), strict=True):
                for x, y in zip(np.array_split(xs, 4), np.array_split(ys, 4), strict=True):
                    batch = torch.from_numpy(x.copy()), torch.from_numpy(y.copy())
                    losses.append(float(made.step(partial(closure, *batch)).detach()) * len(x))
    return state_arrays(net), losses


@pytest.mark.parametrize("net", [mlp, awkward_net])
@pytest.mark.parametrize("optimizer", [LBFGS, WOLFE, TWICE], ids=lambda each: each["optimizer"].__name__)
def test_one_worker_is_the_plain_loop(engine, net, optimizer):
    trainer = trainer_of(engine, workers=1, net=net, optimizer=optimizer)
    ours = fit(trainer, data=blocked(X, Y, 3), num_batches_per_worker=4, **STILL)
    plain, losses = plain_loop(net(), optimizer)
    assert_same_bits(ours, plain)
    assert [record["loss"] for record in trainer.history] == [
        pytest.approx(sum(losses[start : start + 12]) / len(X), rel=1e-6) for start in (0, 12, 24)
    ]


def test_gradients_of_each_evaluation_are_clipped():
    trainer = trainer_of(workers=1, net=mlp, optimizer=WOLFE, gradients=Gradients(clip_norm=0.2))
    ours = fit(trainer, data=blocked(X, Y, 3), num_batches_per_worker=4, **STILL)
    assert_same_bits(ours, plain_loop(mlp(), WOLFE, clip=0.2)[0])


def test_rounds_that_are_resumed(tmp_path):
    every_round_resumed(tmp_path, lambda engine: trainer_of(engine, net=awkward_net, optimizer=WOLFE))


@pytest.mark.parametrize("merge", ["synchronous", "commutative", "parameter_server"])
def test_several_workers_learn(merge):
    trainer = trainer_of(net=mlp, optimizer=WOLFE)
    fit(trainer, merge=Merge(merge, optimizer_state="reset"))
    assert trainer.history[-1]["loss"] < 0.7 * trainer.history[0]["loss"]


class Never(torch.optim.SGD):
    """Does without the loss that it asks for."""

    def step(self, closure):
        super().step()


@pytest.mark.parametrize(
    ("optimizer", "options", "message"),
    [
        (
            LBFGS,
            {"gradients": Gradients(accumulate=2)},
            "accumulate=2 .* LBFGS, which evaluates the loss several times a step",
        ),
        (TWICE, {"gradients": Gradients(on_nan="skip")}, "on_nan='skip' .* TwoSteps, which evaluates the loss"),
    ],
)
def test_options_that_they_do_not_have(optimizer, options, message):
    with pytest.raises(ValueError, match=message):
        DistributedTrainer(2, engine=NoTasks()).build(mlp(), optimizer, "cross_entropy", **options)


def test_their_states_are_not_averaged():
    with pytest.raises(ValueError, match="optimizer_state='average' averages tensors, but LBFGS keeps"):
        fit(trainer_of(NoTasks(), net=mlp, optimizer=LBFGS), merge=Merge(optimizer_state="average"))


def test_an_optimizer_that_does_not_evaluate_the_loss():
    with pytest.raises(ValueError, match="Never has not called the closure"):
        fit(trainer_of(net=mlp, optimizer={"optimizer": Never, "lr": 0.1}))
