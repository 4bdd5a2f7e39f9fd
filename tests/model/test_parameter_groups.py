"""Groups of parameters are those that the same torch code would make; every form trains the same
bits.
"""

from functools import partial

import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer
from compss_train.engines.calls import intra_op_threads
from compss_train.model.lr_schedule import make_schedule
from compss_train.model.net_optimizers import make_optimizer, net_optimizer
from tests.helpers.models import assert_same_bits, classification, mlp, state_arrays

X, Y = classification()
HEAD = ["2.weight", "2.bias"]


def groups_by_hand(net):
    named = dict(net.named_parameters())
    body = [parameter for name, parameter in named.items() if name not in HEAD]
    head = [named[name] for name in HEAD]
    return [{"params": body}, {"params": head, "lr": 0.01, "name": "2"}]


def closing_over(net):
    return lambda _: torch.optim.AdamW(groups_by_hand(net), lr=0.1)


def by_names(named_parameters):
    named = dict(named_parameters)
    head = [named.pop(name) for name in HEAD]
    groups = [{"params": [*named.values()]}, {"params": head, "lr": 0.01, "name": "2"}]
    return torch.optim.AdamW(groups, lr=0.1)


ADAMW = {"optimizer": torch.optim.AdamW, "lr": 0.1}
FORMS = {
    "instance": lambda net: torch.optim.AdamW(groups_by_hand(net), lr=0.1),
    "closure": closing_over,
    "params": lambda net: {**ADAMW, "params": groups_by_hand(net)},
    "names": lambda net: by_names,
    "prefix": lambda net: {**ADAMW, "groups": {"2": {"lr": 0.01}}},
    "glob": lambda net: {**ADAMW, "groups": {"2.*": {"lr": 0.01}}},
    "overlap": lambda net: {**ADAMW, "groups": {"2": {"lr": 0.5}, "2.*": {"lr": 0.01}}},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_a_plain_loop(form):
    net = mlp()
    plain_net = mlp()
    trainer = DistributedTrainer(1, engine="serial", seed=0, threads=1)
    trainer.build(net, FORMS[form](net), "cross_entropy")
    before = state_arrays(net)
    trained = trainer.fit(
        X, Y, num_epochs=3, batch_size=20, shuffle=None, shuffle_block_data=False, progress=False
    )
    assert_same_bits(state_arrays(net), before)
    optimizer = FORMS["instance"](plain_net)
    with intra_op_threads(1):
        for start in (0, 20, 40) * 3:
            optimizer.zero_grad()
            outputs = plain_net(torch.from_numpy(X[start : start + 20]))
            nn.functional.cross_entropy(outputs, torch.from_numpy(Y[start : start + 20])).backward()
            optimizer.step()
    assert_same_bits(trained, state_arrays(plain_net))
    name = "lr/2+2" if form == "overlap" else "lr/2"
    assert [(record["lr"], record[name]) for record in trainer.history] == [(0.1, 0.01)] * 3


def test_options_of_overlapping_patterns_are_merged_in_order():
    net = mlp()
    groups = {"0.*": {"lr": 0.2, "beta_1": 0.5}, "*.bias": {"weight_decay": 0.0, "lr": 0.3}}
    spec = {"optimizer": "adam", "lr": 0.1, "beta_2": 0.8, "weight_decay": 0.01, "groups": groups}
    options = {
        group.get("name"): (
            group["lr"],
            group["weight_decay"],
            group["betas"],
            len(group["params"]),
        )
        for group in make_optimizer(net_optimizer(spec, net), net).param_groups
    }
    assert options == {
        None: (0.1, 0.01, (0.9, 0.8), 1),
        "0": (0.2, 0.01, (0.5, 0.8), 1),
        "bias": (0.3, 0.0, (0.9, 0.8), 1),
        "0+bias": (0.3, 0.0, (0.5, 0.8), 1),
    }
    schedule = make_schedule(lambda epoch: 0.5**epoch, net, net_optimizer(spec, net))
    assert schedule.rates(1) == pytest.approx(
        {"lr": 0.05, "lr/0": 0.1, "lr/bias": 0.15, "lr/0+bias": 0.15}
    )


def test_frozen_parameters_are_left_out():
    net = mlp()
    net[0].requires_grad_(False)
    seen = []

    def make(named_parameters):
        seen.append([name for name, _ in named_parameters])
        return torch.optim.SGD(named_parameters, lr=0.1)

    for spec in ({"optimizer": "sgd", "lr": 0.1}, make):
        made = make_optimizer(net_optimizer(spec, net), net)
        assert [len(group["params"]) for group in made.param_groups] == [2]
    assert seen == [HEAD]


@pytest.mark.parametrize(
    ("spec", "error", "name"),
    [
        (
            {**ADAMW, "groups": {"layer4": {"lr": 1}}},
            ValueError,
            "'layer4', which matches no trained parameter;",
        ),
        (
            {**ADAMW, "groups": {"2": {"momentum": 1}}},
            ValueError,
            "option 'momentum'; AdamW has lr, betas",
        ),
        ({**ADAMW, "groups": ["2"]}, TypeError, "give options by pattern"),
        (
            torch.optim.SGD(mlp().parameters(), lr=1),
            ValueError,
            "other parameters than those of the network",
        ),
    ],
)
def test_wrong_groups_are_errors_of_build(spec, error, name, raises):
    trainer = DistributedTrainer(1, engine="serial")
    with raises(error, name):
        trainer.build(mlp(), spec, "cross_entropy")


class WithoutRate(torch.optim.Optimizer):
    """Has no learning rate, as A2Grad, or none by default, as Adafactor of transformers."""

    def __init__(self, parameters, **options):
        super().__init__(parameters, {"length": 0.01, **options})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad.sign(), alpha=group["length"])


@pytest.mark.parametrize("options", [{}, {"lr": None}])
def test_an_optimizer_may_have_no_learning_rate(raises, options):
    trainer = DistributedTrainer(2, engine="serial", seed=0, threads=1)
    optimizer = partial(WithoutRate, **options)
    with raises(ValueError, "WithoutRate has none"):
        trainer.build(mlp(), optimizer, "cross_entropy", schedule=lambda epoch: 0.5**epoch)
    trainer.build(mlp(), optimizer, "cross_entropy")
    trainer.fit(X, Y, num_epochs=3, batch_size=10, progress=False)
    assert not any(name.startswith("lr") for name in trainer.history[-1])
    assert trainer.history[-1]["loss"] < trainer.history[0]["loss"]
