"""Law 1: one worker without shuffles is the plain PyTorch loop, bit for bit."""

import copy
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer, Gradients, Merge
from compss_train.engines.nodes import cores
from compss_train.worker.state import with_tensors
from tests.helpers.models import (
    ADAM,
    SGD,
    assert_same_bits,
    awkward_net,
    blocked,
    classification,
    mlp,
    state_arrays,
)
from tests.helpers.plain_loop import OPTIMIZERS, plain_loop
from tests.helpers.small_fits import STILL, fit, trainer_of


@pytest.mark.parametrize("make_net", [mlp, awkward_net])
@pytest.mark.parametrize(("spec", "plain"), OPTIMIZERS, ids=["sgd", "adam", "nadam", "adamw", "callable"])
def test_one_worker_is_the_plain_loop(engine, make_net, spec, plain):
    x, y = classification(samples=62)
    trainer = trainer_of(engine, 1, seed=3, net=make_net, optimizer=spec)
    ours = fit(trainer, data=blocked(x, y, 4), num_batches_per_worker=3, **STILL)
    assert_same_bits(ours, plain_loop(make_net(), plain, x, y, 4, 3, 3, seed=3))


def test_the_default_threads_are_those_of_a_plain_program(engine):
    x, y = classification()
    trainer = DistributedTrainer(1, engine=engine, seed=3)
    threads = engine.threads or cores()
    trainer.build(awkward_net(), ADAM, "cross_entropy")
    ours = trainer.fit(x, y, num_epochs=2, batch_size=20, shuffle=None, shuffle_block_data=False)
    plain = plain_loop(awkward_net(), OPTIMIZERS[1][1], x, y, 1, 3, 2, seed=3, threads=threads)
    assert_same_bits(ours, plain)


@pytest.mark.parametrize("every", [("epochs", 0), ("epochs", 2), ("blocks", 1)], ids=str)
def test_how_often_it_merges_changes_nothing_for_one_worker(engine, every):
    x, y = classification()
    unit, number = every
    trainer = trainer_of(engine, 1, seed=3)
    ours = fit(trainer, data=blocked(x, y, 4), batch_size=5, merge=Merge(every=number, unit=unit), **STILL)
    assert_same_bits(ours, plain_loop(awkward_net(), OPTIMIZERS[1][1], x, y, 4, 3, 3, seed=3))


def test_double_precision_and_convolutions_keep_their_bits_too(engine):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(24, 2, 6, 6)), random.normal(size=(24, 3, 4, 4))
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).double()
    trainer = trainer_of(engine, 1, net=lambda: net, optimizer=SGD, loss="mse", metric=None)
    ours = fit(trainer, data=blocked(x, y, 2), num_epochs=2, num_batches_per_worker=2, **STILL)
    plain = plain_loop(net, OPTIMIZERS[0][1], x, y, 2, 2, 2, seed=0, loss=nn.functional.mse_loss)
    assert_same_bits(ours, plain)


def test_the_callers_randomness_threads_and_network_stay():
    x, y = classification()
    net = awkward_net()
    before = state_arrays(copy.deepcopy(net))
    trainer = DistributedTrainer(2, engine="serial", seed=3, threads=1)
    torch.manual_seed(99)
    np.random.seed(99)
    expected = torch.rand(3), np.random.rand()
    threads = torch.get_num_threads()
    torch.manual_seed(99)
    np.random.seed(99)
    trainer.build(net, ADAM, "cross_entropy")
    trainer.fit(*blocked(x, y, 4), num_epochs=1, batch_size=5)
    trainer.evaluate(x, y)
    assert torch.equal(torch.rand(3), expected[0])
    assert np.random.rand() == expected[1]
    assert torch.get_num_threads() == threads
    assert_same_bits(state_arrays(net), before)


def test_a_new_optimizer_every_round_on_request(engine):
    x, y = classification()
    results = {}
    for kept in ("keep", "reset"):
        trainer = trainer_of(engine, 1, seed=3, net=mlp, optimizer=SGD)
        merge = Merge(optimizer_state=kept)
        results[kept] = fit(trainer, data=(x, y), num_epochs=2, batch_size=20, merge=merge, **STILL)
    one = plain_loop(mlp(), OPTIMIZERS[0][1], x, y, 1, 3, 1, seed=3)
    net = mlp()
    net.load_state_dict({name: torch.from_numpy(array) for name, array in one.items()})
    assert_same_bits(results["reset"], plain_loop(net, OPTIMIZERS[0][1], x, y, 1, 3, 1, seed=3))
    assert_same_bits(results["keep"], plain_loop(mlp(), OPTIMIZERS[0][1], x, y, 1, 3, 2, seed=3))


def falling(epoch):
    return 0.5**epoch


@pytest.mark.parametrize("every", [{}, {"unit": "blocks"}, {"unit": "batches"}, {"every": 2}], ids=str)
@pytest.mark.parametrize(
    "build",
    [{}, {"schedule": falling}, {"gradients": Gradients(accumulate=2)}],
    ids=["plain", "schedule", "accumulated"],
)
def test_a_new_optimizer_every_block_on_request(every, build):
    """Blocks of three batches; merges inside them keep the optimizer, and a schedule is not forgotten."""
    x, y = classification(samples=54)
    trainer = trainer_of(workers=1, seed=3, net=mlp, optimizer=SGD, **build)
    merge = Merge(optimizer_state="reset_blocks", **every)
    ours = fit(trainer, data=blocked(x, y, 3), num_epochs=2, num_batches_per_worker=3, merge=merge, **STILL)
    net = mlp()
    for epoch in range(2):
        for block in zip(np.array_split(x, 3), np.array_split(y, 3), strict=True):
            spec = {**SGD, "lr": SGD["lr"] * (falling(epoch) if "schedule" in build else 1)}
            alone = trainer_of(workers=1, seed=3, net=lambda: net, optimizer=spec, gradients=build.get("gradients"))
            merge = Merge(unit="batches" if every.get("unit") == "batches" else None)
            whole = fit(alone, data=block, num_epochs=1, num_batches_per_worker=3, merge=merge, **STILL)
            net.load_state_dict({name: torch.from_numpy(array) for name, array in whole.items()})
    assert_same_bits(ours, state_arrays(net))


class SharedSteps(torch.optim.Optimizer):
    """Divides by the number of updates of all parameters, a tensor that is in the state of each."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        parameters = self.param_groups[0]["params"]
        steps = self.state[parameters[0]].get("steps", torch.zeros(1))
        for parameter in parameters:
            self.state[parameter]["steps"] = self.state[parameter].get("steps", steps).add_(1)
            parameter -= 0.1 / self.state[parameter]["steps"] * parameter.grad


def test_states_of_an_optimizer_share_the_tensors_that_they_shared():
    x, y = classification()
    trainer = trainer_of(workers=1, seed=3, net=mlp, optimizer=SharedSteps)
    ours = fit(trainer, data=(x, y), batch_size=20, **STILL)
    assert_same_bits(ours, plain_loop(mlp(), SharedSteps, x, y, 1, 3, 3, seed=3))


class Moments(NamedTuple):
    first: torch.Tensor


@pytest.mark.parametrize("container", [dict, lambda moments: Moments(**moments)])
def test_tensors_in_nested_states_go_to_the_cpu(container):
    held = container({"first": torch.zeros(2)})
    own = with_tensors(torch.Tensor.cpu, {"state": {0: held}, "param_groups": [{"lr": 0.1}]})
    assert (type(own["state"][0]), own["param_groups"]) == (type(held), [{"lr": 0.1}])
    with pytest.raises(NotImplementedError):  # a tensor without values cannot be moved
        with_tensors(torch.Tensor.cpu, {"state": {0: container({"first": torch.zeros(2, device="meta")})}})
