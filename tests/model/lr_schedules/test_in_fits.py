"""The laws of schedules: the plain PyTorch loop's bits, and one clock for any number of workers."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import BufferSpec, DistributedTrainer, Merge, PartialShuffle
from tests.helpers.models import SGD, assert_same_bits, awkward_net, blocked, classification
from tests.helpers.small_fits import combined
from tests.model.lr_schedules.schedulers import SCHEDULERS, Notes, Noting

X, Y = classification(samples=62)
IN_ORDER = {"shuffle": None, "shuffle_block_data": False, "num_batches_per_worker": 2}


def built(engine, workers, schedule, optimizer=SGD, net=awkward_net):
    trainer = DistributedTrainer(workers, engine=engine, seed=3, threads=1)
    trainer.build(net(), optimizer, "cross_entropy", schedule=schedule)
    return trainer


def test_a_second_fit_continues_counting_epochs():
    whole, parts = (built("serial", 1, SCHEDULERS["one cycle"]) for _ in range(2))
    expected = whole.fit(*blocked(X, Y, 4), num_epochs=5, **IN_ORDER)
    for epochs in (1, 2, 2):
        ours = parts.fit(*blocked(X, Y, 4), num_epochs=epochs, **IN_ORDER)
    assert_same_bits(ours, expected)
    assert [record["lr"] for record in parts.history] == [record["lr"] for record in whole.history]
    parts.build(awkward_net(), SGD, "cross_entropy", schedule=SCHEDULERS["one cycle"])  # begins anew
    assert_same_bits(parts.fit(*blocked(X, Y, 4), num_epochs=5, **IN_ORDER), expected)


# One clock. The gradient is the number of samples, so that those that a learning rate was used for can be counted.

NUMBERS = np.ones((48, 1), np.float32)
WAYS = [
    {},
    {"merge": Merge(every=2)},
    {"merge": Merge(every=0)},
    {"merge": Merge(unit="blocks")},
    {"merge": Merge(every=2, unit="blocks")},
    {"shuffle": "total", "merge": Merge(every=0)},
    {"shuffle": PartialShuffle(), "merge": Merge(every=0)},
    {"shuffle": PartialShuffle(), "merge": Merge(unit="blocks")},
    {"buffer": BufferSpec("FIFO", 16), "merge": Merge(every=0)},
    {"buffer": BufferSpec("FIRO", 16, threshold=8), "merge": Merge(every=2)},
    {"merge": Merge(every=2, optimizer_state="reset")},
    {"merge": "commutative"},
    {"merge": Merge("commutative", every=0)},
]


def total(output, target):
    return output.sum()


def one_weight():
    net = nn.Linear(1, 1)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    return net


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_clock_is_the_epoch_for_any_number_of_workers(workers, way):
    notes = Notes()

    def optimizer(parameters):
        weight, bias = parameters
        groups = [{"params": [weight], "lr": 0.5}, {"params": [bias], "lr": 0.25, "momentum": 0.0}]
        return Noting(groups, notes, lr=1.0, momentum=0.5)

    trainer = DistributedTrainer(workers, engine="serial", seed=0, threads=1)
    trainer.build(one_weight(), optimizer, total, schedule=lambda epoch: 1 / (epoch + 1))
    for _ in range(2):
        trainer.fit(*blocked(NUMBERS, NUMBERS, 6), num_epochs=3, num_batches_per_worker=3, **way)
    used = Counter()
    for group, lr, momentum, samples in notes:
        used[group, lr, momentum] += samples
    expected = {(0, 0.5, 0.5): 48, (1, 0.25, 0.0): 48}
    assert used == {(g, lr / (e + 1), m): n for (g, lr, m), n in expected.items() for e in range(6)}
    assert [record["lr"] for record in trainer.history] == [0.5 / record["epoch"] for record in trainer.history]


@pytest.mark.parametrize("merge", ["synchronous", "commutative", "parameter_server"])
@pytest.mark.parametrize(
    "way", [{"merge": Merge(every=1)}, {"merge": Merge(every=2)}, {"merge": Merge(unit="blocks")}], ids=str
)
def test_other_engines_and_merges_have_the_same_clock(engine, merge, way):
    """Every worker has half of the samples, whose steps add up: what is merged is half of all that was done."""
    trainer = DistributedTrainer(2, engine=engine, seed=0, threads=1)
    sgd = {"optimizer": "sgd", "lr": 1.0}
    trainer.build(one_weight(), sgd, total, schedule=lambda epoch: 0.5**epoch)
    final = trainer.fit(NUMBERS, NUMBERS, num_epochs=4, num_batches_per_worker=3, **combined(way, merge=merge))
    assert final["weight"].item() == -48 / 2 * (1 + 1 / 2 + 1 / 4 + 1 / 8)


def test_a_learning_rate_that_is_a_tensor_is_set_in_place():
    class Sgd(torch.optim.SGD):
        def step(self, closure=None):
            kinds.add(type(self.param_groups[0]["lr"]))
            super().step(closure)

    def sgd(lr, parameters):
        return Sgd(parameters, lr=lr, momentum=0.9)

    results, kinds = [], set()
    for lr in (0.05, torch.tensor(0.05, dtype=torch.float64)):
        trainer = built("serial", 2, SCHEDULERS["step"], partial(sgd, lr))
        results.append(trainer.fit(*blocked(X, Y, 4), num_epochs=4, batch_size=5))
        assert kinds == {type(lr)}
        kinds.clear()
        assert [type(record["lr"]) for record in trainer.history] == [float] * 4
        assert [record["lr"] for record in trainer.history] == pytest.approx([0.05, 0.05, 0.015, 0.015])
    assert_same_bits(*results)
