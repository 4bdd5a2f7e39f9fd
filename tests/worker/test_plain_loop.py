"""Law 1: one worker without shuffles is the plain PyTorch loop, bit for bit."""

import copy
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer, Gradients, Merge
from compss_train.engines.nodes import cores
from tests.helpers.callbacks import NoTasks
from tests.helpers.cases import each_value
from tests.helpers.models import (
    ADAM,
    SGD,
    Smoothed,
    assert_same_bits,
    awkward_net,
    blocked,
    classification,
    mlp,
    named,
    state_arrays,
)
from tests.helpers.plain_loop import OPTIMIZERS, plain_loop
from tests.helpers.small_fits import PLAIN_SGD, STILL, X, Y, combined, fit, trainer_of
from tests.helpers.tolerances import sum_error


class SharedSteps(torch.optim.Optimizer):
    """Divides by the number of updates of all parameters, a tensor that is in the state of each."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        parameters = self.param_groups[0]["params"]
        steps = self.state[parameters[0]].get("steps", torch.zeros(1))
        for parameter in parameters:
            self.state[parameter]["steps"] = self.state[parameter].get("steps", steps).add_(1)
            parameter -= 0.1 / self.state[parameter]["steps"] * parameter.grad


class TwoSteps(torch.optim.SGD):
    """Makes two steps with each batch, whose loss it evaluates by itself."""

    def step(self, closure):
        first = closure()
        super().step()
        closure()
        super().step()
        return first


class Sharpness(torch.optim.Optimizer):
    """Foret et al.'s, as it is published: fails without the closure that has a default."""

    evaluates_again = True

    def __init__(self, parameters, rho=0.05, **options):
        super().__init__(parameters, {"rho": rho, **options})
        self.inner = torch.optim.SGD(self.param_groups, **options)
        self.param_groups = self.inner.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is not None, "needs a closure"
        parameters = self.param_groups[0]["params"]
        norm = torch.stack([parameter.grad.norm() for parameter in parameters]).norm()
        before = [parameter.clone() for parameter in parameters]
        for parameter in parameters:
            parameter += parameter.grad * (self.param_groups[0]["rho"] / (norm + 1e-12))
        with torch.enable_grad():
            closure()
        for parameter, value in zip(parameters, before, strict=True):
            parameter.copy_(value)
        self.inner.step()


LBFGS = {"optimizer": torch.optim.LBFGS, "lr": 0.3, "max_iter": 4, "history_size": 3}
WOLFE = {**LBFGS, "line_search_fn": "strong_wolfe"}
SHARPNESS = {"optimizer": Sharpness, "lr": 0.05, "momentum": 0.9}
TWICE = {"optimizer": TwoSteps, "lr": 0.05, "momentum": 0.9}


def by_spec(spec):
    """Return an optimizer as ``build`` takes it, and as a plain loop makes it."""
    return spec, partial(
        spec["optimizer"], **{name: value for name, value in spec.items() if name != "optimizer"}
    )


def trained(trainer, **options):
    return fit(trainer, data=blocked(X, Y, 4), num_batches_per_worker=3, **STILL, **options)


def looped(net, make_optimizer, **options):
    return plain_loop(net, make_optimizer, X, Y, 4, 3, 3, seed=3, **options)


@pytest.mark.parametrize("state", [None, "keep"])
def test_several_workers_that_keep_states_of_lbfgs_are_warned_of(state):
    match = r'keep the states of LBFGS.* merge=Merge\(optimizer_state="reset"\)'
    with pytest.warns(UserWarning, match=match):
        fit(
            trainer_of(workers=2, optimizer=LBFGS),
            num_epochs=1,
            merge=Merge(optimizer_state=state),
        )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("optimizer", "workers", "state"), [(LBFGS, 2, "reset"), (LBFGS, 1, None), (TWICE, 2, None)]
)
def test_other_states_of_optimizers_are_kept_without_a_warning(optimizer, workers, state):
    trainer = trainer_of(workers=workers, optimizer=optimizer)
    fit(trainer, num_epochs=1, merge=Merge(optimizer_state=state))


@pytest.mark.parametrize(
    ("spec", "make"),
    [
        *OPTIMIZERS,
        (SharedSteps, SharedSteps),
        *map(by_spec, (LBFGS, WOLFE, TWICE, SHARPNESS)),
    ],
    ids=[
        "sgd",
        "adam",
        "nadam",
        "adamw",
        "callable",
        "shared steps",
        "LBFGS",
        "line search",
        "two steps",
        "sharpness",
    ],
)
def test_one_worker_is_the_plain_loop(engine, spec, make):
    trainer = trainer_of(engine, 1, seed=3, optimizer=spec)
    losses = []
    assert_same_bits(trained(trainer), looped(awkward_net(), make, losses=losses))
    means = [sum(losses[start : start + 12]) / len(X) for start in (0, 12, 24)]
    assert [record["loss"] for record in trainer.history] == pytest.approx(
        means, rel=sum_error(np.float64, len(losses))
    )


def norm_clipped(net):
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)


def value_clipped(net):
    nn.utils.clip_grad_value_(net.parameters(), 0.02)


def unit_clipped(net):
    """Clip as Brock et al. define it, one unit after another."""
    for parameter in net.parameters():
        units = [parameter] if parameter.dim() < 2 else parameter
        gradients = [parameter.grad] if parameter.dim() < 2 else parameter.grad
        for unit, gradient in zip(units, gradients, strict=True):
            limit = 0.02 * unit.detach().norm().clamp(min=1e-3)
            if gradient.norm() > limit:
                gradient.mul_(limit / gradient.norm())


CLIPPED = {
    "not": ({}, None),
    "norm": ({"clip_norm": 0.5}, norm_clipped),
    "value": ({"clip_value": 0.02}, value_clipped),
    "adaptive": ({"clip_adaptive": 0.02}, unit_clipped),
}


@pytest.mark.parametrize(
    ("gradients", "precision"),
    each_value([*product(CLIPPED, [1, 5])], ["fp32", "bf16", "fp16"]),
    ids=str,
)
def test_gradients_are_clipped_and_accumulated_as_there(gradients, precision):
    """12 batches an epoch: the last step of each is of two."""
    clipped, accumulate = gradients
    limits, clip = CLIPPED[clipped]
    plain = looped(
        awkward_net(), OPTIMIZERS[0][1], clip=clip, accumulate=accumulate, precision=precision
    )
    # Where all is finite, it is all the same.
    for on_nan in ("skip", "ignore" if accumulate == 1 else "raise"):
        gradients = Gradients(**limits, accumulate=accumulate, on_nan=on_nan)
        trainer = trainer_of(
            workers=1, seed=3, optimizer=SGD, gradients=gradients, precision=precision
        )
        assert_same_bits(trained(trainer), plain)
        assert "skipped_batches" not in trainer.history[0]
    if limits:
        large = looped(awkward_net(), OPTIMIZERS[0][1], accumulate=accumulate, precision=precision)
        assert not np.array_equal(large["0.weight"], plain["0.weight"])


def test_gradients_of_each_evaluation_are_clipped():
    trainer = trainer_of(workers=1, seed=3, optimizer=WOLFE, gradients=Gradients(clip_norm=0.5))
    assert_same_bits(trained(trainer), looped(awkward_net(), by_spec(WOLFE)[1], clip=norm_clipped))


@pytest.mark.parametrize(
    ("merge", "way"),
    each_value(
        ["synchronous", "commutative", "parameter_server", Merge(optimizer_state="reset")],
        [Merge(every=2, unit="batches"), Merge(every=1, unit="blocks"), Merge()],
    ),
    ids=str,
)
def test_buffers_outside_the_state_dict_belong_to_their_worker(merge, way):
    trainer = trainer_of(workers=1, seed=3, net=Smoothed, optimizer=PLAIN_SGD)
    ours = trained(trainer, **combined({"merge": merge}, merge=way))
    assert_same_bits(ours, looped(Smoothed(), lambda p: torch.optim.SGD(p, lr=0.1)))


def test_the_default_threads_are_those_of_a_plain_program(engine):
    trainer = DistributedTrainer(1, engine=engine, seed=3)
    threads = engine.threads or cores()
    trainer.build(awkward_net(), ADAM, "cross_entropy")
    ours = fit(trainer, data=(X, Y), num_epochs=2, batch_size=20, **STILL)
    assert_same_bits(
        ours, plain_loop(awkward_net(), OPTIMIZERS[1][1], X, Y, 1, 3, 2, seed=3, threads=threads)
    )


def test_the_callers_randomness_threads_and_network_stay():
    net = awkward_net()
    threads = torch.get_num_threads()
    before = state_arrays(copy.deepcopy(net))
    torch.manual_seed(99)
    np.random.seed(99)
    expected = torch.rand(3), np.random.rand()
    torch.manual_seed(99)
    np.random.seed(99)
    trainer = trainer_of(workers=2, net=lambda: net)
    trained(trainer)
    trainer.evaluate(X, Y)
    assert torch.equal(torch.rand(3), expected[0])
    assert np.random.rand() == expected[1]
    assert torch.get_num_threads() == threads
    assert_same_bits(state_arrays(net), before)


def test_a_new_optimizer_every_round_on_request(engine):
    trainer = trainer_of(engine, 1, seed=3, net=mlp, optimizer=SGD)
    net = mlp()
    ours = trained(trainer, merge=Merge(optimizer_state="reset"))
    for _ in range(3):
        epoch = plain_loop(net, OPTIMIZERS[0][1], X, Y, 4, 3, 1, seed=3)
        net.load_state_dict({name: torch.from_numpy(array) for name, array in epoch.items()})
    assert_same_bits(ours, state_arrays(net))


def falling(epoch):
    return 0.5**epoch


@pytest.mark.parametrize(
    ("rounds", "build"),
    each_value(
        [{}, {"unit": "blocks"}, {"unit": "batches"}, {"every": 2}],
        [{}, {"schedule": falling}, {"gradients": Gradients(accumulate=2)}],
    ),
    ids=named,
)
def test_a_new_optimizer_every_block_on_request(rounds, build):
    """Merges inside blocks of three batches keep the optimizer, and a schedule goes on."""
    x, y = classification(samples=54)
    trainer = trainer_of(workers=1, seed=3, net=mlp, optimizer=SGD, **build)
    merge = Merge(optimizer_state="reset_blocks", **rounds)
    ours = fit(
        trainer, data=blocked(x, y, 3), num_epochs=2, num_batches_per_worker=3, merge=merge, **STILL
    )
    net = mlp()
    for epoch in range(2):
        for block in zip(np.array_split(x, 3), np.array_split(y, 3), strict=True):
            spec = {**SGD, "lr": SGD["lr"] * (falling(epoch) if "schedule" in build else 1)}
            alone = trainer_of(
                workers=1, seed=3, net=lambda: net, optimizer=spec, gradients=build.get("gradients")
            )
            merge = Merge(unit="batches" if rounds.get("unit") == "batches" else None)
            whole = fit(
                alone, data=block, num_epochs=1, num_batches_per_worker=3, merge=merge, **STILL
            )
            net.load_state_dict({name: torch.from_numpy(array) for name, array in whole.items()})
    assert_same_bits(ours, state_arrays(net))


class Never(torch.optim.SGD):
    """Does without the loss that it asks for."""

    def step(self, closure):
        super().step()


@pytest.mark.parametrize(
    ("optimizer", "options", "name"),
    [
        (LBFGS, {"gradients": Gradients(accumulate=2)}, "accumulate=2"),
        (TWICE, {"gradients": Gradients(on_nan="skip")}, "on_nan='skip'"),
        (SHARPNESS, {"gradients": Gradients(on_nan="skip")}, "does not work with Sharpness"),
        ({"0": SHARPNESS, "2": SGD}, {"training_step": Never}, "one of several optimizers"),
        (LBFGS, {"precision": "fp16"}, "precision='fp16' does not work with LBFGS"),
    ],
)
def test_options_that_they_do_not_have(optimizer, options, name, raises):
    with raises(ValueError, name):
        DistributedTrainer(2, engine=NoTasks()).build(mlp(), optimizer, "cross_entropy", **options)


def test_an_optimizer_that_does_not_evaluate_the_loss():
    with pytest.raises(ValueError, match="Never has not called the closure"):
        fit(trainer_of(net=mlp, optimizer={"optimizer": Never, "lr": 0.1}))
