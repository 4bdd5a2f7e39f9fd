"""Laws 2, 3 and 4: what merging means."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from compss_train import Merge, SerialEngine
from compss_train.model.training_spec import TensorNames
from compss_train.training.schedules.tree import gather_by_tree
from compss_train.worker.merging.merge import MergeStages, merge_part
from compss_train.worker.merging.rules import Mean
from tests.helpers.cases import slow
from tests.helpers.models import (
    ADAM,
    SGD,
    assert_close,
    assert_same_bits,
    blocked,
    classification,
    mlp,
)
from tests.helpers.small_fits import STILL, combined, fitted, trainer_of
from tests.helpers.tolerances import average, largest, sum_error, weighted


def test_halving_is_dislibs_rule(engine):
    x, y = classification(samples=20)
    start = {name: tensor.numpy() for name, tensor in mlp().state_dict().items()}
    options = {"num_epochs": 1, "num_batches_per_worker": 1, **STILL}
    merged = fitted(
        engine, 1, x, y, **combined(options, merge=Merge("commutative", rule="halving"))
    )
    plain = fitted(engine, 1, x, y, **options)
    halves = {name: (start[name] + plain[name]) / 2 for name in start}
    assert_close(merged, halves, sum_error(np.float32, 2, largest(start, plain)))


@pytest.mark.parametrize("arity", [4, 8, 64])
@pytest.mark.parametrize("count", [1, 2, 8, 9, 17, 65, 130])
def test_a_tree_of_any_size_is_the_weighted_mean(count, arity):
    rng = np.random.default_rng(count)
    versions = [
        {"w": rng.normal(size=5).astype(np.float32), "n": np.array(k)} for k in range(count)
    ]
    counts = rng.integers(1, 100, count).tolist()
    engine = SerialEngine()
    trained = {item.first: engine.publish([item]) for item in weighted(versions, counts)}
    groups = gather_by_tree(engine, Mean(), trained, arity=arity, place=0)
    assert len(groups) <= arity
    stages = MergeStages(rule=Mean(), names=TensorNames(("w",)))
    merged = merge_part(engine.fetch(groups), stages, versions[0])
    assert_same_bits(merged, average(versions, counts))
    expected = np.average([v["w"].astype(np.float64) for v in versions], axis=0, weights=counts)
    # Sums in double precision, rounded once.
    atol = sum_error(np.float64, 2 * count, largest(*({"w": version["w"]} for version in versions)))
    np.testing.assert_allclose(merged["w"], expected, rtol=np.finfo(np.float32).eps, atol=atol)
    assert merged["n"] == count - 1


def test_weights_never_pass_through_the_coordinator(shared_local, monkeypatch):
    """Between the start and the end of a fit, only measurements are fetched."""
    fetched = []
    original = type(shared_local).fetch

    def counting(self, refs, **options):
        values = original(self, refs, **options)
        fetched.extend(values)
        return values

    monkeypatch.setattr(type(shared_local), "fetch", counting)
    x, y = classification()
    fitted(shared_local, 2, *blocked(x, y, 4), num_epochs=5, batch_size=10)
    parameters = [value for value in fetched if "0.weight" in value]
    assert len(parameters) == 1
    assert parameters[0] is fetched[-1]
    measured = [
        m for value in fetched[:-1] for m in (value if isinstance(value, list) else [value])
    ]
    values = [value for part in measured for value in part.__getstate__().values()]
    assert all(isinstance(value, float | int) for value in values)


def test_more_workers_than_samples_are_told_the_most():
    x, y = classification(samples=3)
    with pytest.warns(
        UserWarning, match=("nothing to train; cut the data into at least .*, or use 3 workers")
    ):
        fitted("serial", 5, x, y, num_epochs=1, batch_size=1)


NESTEROV = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
MERGES = {
    "synchronous": {},
    "by batches": {"merge": Merge(every=2, unit="batches")},
    "outer": {"merge": Merge(outer_optimizer=ADAM)},
    "averaged": {"merge": Merge(optimizer_state="average", averaging="ema")},
    "averaged by steps": {"merge": Merge(averaging="ema", averaging_unit="steps")},
    "int8": {"merge": Merge(dtype="int8")},
    "commutative": {"merge": "commutative"},
    "commutative int8": {"merge": Merge("commutative", dtype="int8")},
    "halving": {"merge": Merge("commutative", rule="halving")},
    "commutative, each alone": {"merge": Merge("commutative", quorum=0)},
    "commutative outer": {"merge": Merge("commutative", outer_optimizer=NESTEROV)},
    "server": {"merge": "parameter_server"},
    "server with Adam": {"merge": Merge("parameter_server", outer_optimizer=ADAM)},
}
X, Y = classification(samples=60)


class Shared(nn.Module):
    """A weight that two layers have, and a BatchNorm that is used twice; by one name each unless
    ``twice``.
    """

    def __init__(self, *, twice: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 6) if twice else nn.Module()
        if twice:
            self.last.weight = self.first.weight
            self.again = self.norm
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
    options = {"num_epochs": 3, "batch_size": 5, "progress": False, **options}
    parameters = trainer.fit(*blocked(X * np.float32(scale), Y, 6), **options)
    return parameters, list(trainer.history)


NAMED_ONCE = "synchronous", "outer", "averaged", "int8", "commutative", "server with Adam"


@pytest.mark.parametrize(
    "merge", [*NAMED_ONCE, *slow(*(merge for merge in MERGES if merge not in NAMED_ONCE))]
)
def test_a_second_name_changes_nothing(merge):
    twice, records = trained("serial", **MERGES[merge])
    once, expected = trained("serial", twice=False, **MERGES[merge])
    assert_same_bits({name: twice[name] for name in once}, once)
    assert_same_bits(
        {name: twice[name] for name in SECOND},
        {name: twice[first] for name, first in SECOND.items()},
    )
    assert [record["loss"] for record in records] == [record["loss"] for record in expected]


@pytest.mark.parametrize("merge", MERGES)
def test_names_agree_where_workers_arrive_in_any_order(engine, merge):
    """Samples with a spread of 100 make variances that shrink from round to round: none may become
    negative.
    """
    result, _ = trained(engine, scale=100.0, **MERGES[merge])
    for name, first in SECOND.items():
        assert result[name].tobytes() == result[first].tobytes(), name
    assert all(np.isfinite(array).all() for array in result.values())
    assert (result["norm.running_var"] >= 0).all()
