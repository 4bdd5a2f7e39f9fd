"""Modules and tensors under two names: every merge treats both alike, as if there were one name."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from compss_train import Merge
from tests.helpers.models import ADAM, SGD, assert_same_bits, blocked, classification
from tests.helpers.small_fits import trainer_of

NESTEROV = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
MERGES = {
    "synchronous": {},
    "by batches": {"merge": Merge(every=2, unit="batches")},
    "outer": {"merge": Merge(outer_optimizer=ADAM)},
    "averaged": {"merge": Merge(optimizer_state="average", averaging="ema")},
    "int8": {"merge": Merge(dtype="int8")},
    "commutative": {"merge": "commutative"},
    "commutative int8": {"merge": Merge("commutative", dtype="int8")},
    "halving": {"merge": Merge("commutative", rule="halving")},
    "delayed Nesterov": {"merge": Merge("commutative", outer_optimizer=NESTEROV)},
    "server": {"merge": "parameter_server"},
    "server with Adam": {"merge": Merge("parameter_server", outer_optimizer=ADAM)},
}
X, Y = classification(samples=60)


class Shared(nn.Module):
    """A weight that two layers have, and a BatchNorm that is used twice; by one name each unless ``twice``."""

    def __init__(self, *, twice: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 6) if twice else nn.Module()
        if twice:
            self.last.weight, self.again = self.first.weight, self.norm
        self.last.bias = nn.Parameter(torch.linspace(-1, 1, 6))

    def forward(self, x):
        hidden = self.norm(torch.relu(self.first(self.norm(x))))
        return functional.linear(hidden, self.first.weight, self.last.bias)


SECOND = {
    "last.weight": "first.weight",
    **{f"again.{name}": f"norm.{name}" for name in nn.BatchNorm1d(6).state_dict()},
}


def trained(engine, *, twice: bool = True, scale: float = 1.0, **options):
    trainer = trainer_of(engine, net=lambda: Shared(twice=twice), optimizer=SGD)
    given = {"num_epochs": 3, "batch_size": 5, "progress": False, **options}
    return trainer.fit(*blocked(X * np.float32(scale), Y, 6), **given), list(trainer.history)


@pytest.mark.parametrize("merge", MERGES)
def test_a_second_name_changes_nothing(merge):
    """Neither the bits of the parameters, nor what the records say of the workers' agreement."""
    twice, records = trained("serial", **MERGES[merge])
    once, expected = trained("serial", twice=False, **MERGES[merge])
    assert_same_bits({name: twice[name] for name in once}, once)
    assert_same_bits({name: twice[name] for name in SECOND}, {name: twice[first] for name, first in SECOND.items()})
    measured = ("loss", "worker_agreement", "noise_scale")
    for ours, theirs in zip(records, expected, strict=True):
        assert [ours.get(name) for name in measured] == [theirs.get(name) for name in measured]


@pytest.mark.parametrize("merge", MERGES)
def test_names_agree_where_workers_arrive_in_any_order(engine, merge):
    """Samples with a spread of 100 make variances that shrink from round to round: none may become negative."""
    result, _ = trained(engine, scale=100.0, **MERGES[merge])
    for name, first in SECOND.items():
        assert result[name].tobytes() == result[first].tobytes(), name
    assert all(np.isfinite(array).all() for array in result.values())
    assert (result["norm.running_var"] >= 0).all()
