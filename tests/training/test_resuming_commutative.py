"""Where workers do not wait for each other, a checkpoint has all updates of its round and none of
later ones.

The network goes down by the same step with every batch, and all numbers are sums of powers of two:
additions in any order give the same bits, which tell how many batches have been merged.
"""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer, Merge
from compss_train.callbacks import Checkpoint
from compss_train.training.checkpoints import list_checkpoints, read_checkpoint
from tests.helpers.callbacks import InterruptAt, StopAfter
from tests.helpers.cases import each_value
from tests.helpers.models import blocked
from tests.helpers.small_fits import combined, fit
from tests.helpers.waiting import pause

STEP = 2.0**-10
MERGES = [Merge("commutative", quorum=0), Merge("commutative", quorum=1), Merge("parameter_server")]
OPTIONS = {"num_epochs": 5, "batch_size": 2}
BATCHES = 8  # of a worker in a round


class Down(nn.Module):
    """The gradient of its mean is one, whatever it is given."""

    def __init__(self, ballast: int = 1):
        super().__init__()
        self.height = nn.Parameter(torch.zeros(1))
        self.ballast = nn.Parameter(torch.zeros(ballast))

    def forward(self, x):
        return self.height.expand(len(x))


def unsteady(x):
    pause(os.urandom(1)[0] / 255 * 0.004)
    return x


def mean(output, target):
    return output.mean()


def trainer_of(engine, workers=2, ballast=1):
    trainer = DistributedTrainer(workers, engine=engine, seed=0, threads=1)
    trainer.build(Down(ballast), {"optimizer": "sgd", "lr": STEP}, mean, transform=unsteady)
    return trainer


def data():
    return blocked(np.zeros((32, 1), np.float32), np.zeros(32, np.float32), 4)


def height(parameters) -> float:
    """How many rounds have been merged."""
    return float(parameters["height"][0]) / (-STEP * BATCHES)


EXACT = {"optimizer": "sgd", "lr": 0.5, "momentum": 0.5, "nesterov": True}
WITH_MOMENTUM = Merge("commutative", outer_optimizer=EXACT, quorum=1)


def expected(rounds, merge):
    """Return how far the network goes down if the mean change of every round is 1: all numbers are
    exact.
    """
    down = 0.0
    momentum = 0.0
    for _ in range(rounds):
        momentum = 0.5 * momentum + 1
        down += 0.5 * (1 + 0.5 * momentum) if merge == WITH_MOMENTUM else 1
    return down


@pytest.mark.parametrize(("merge", "every"), each_value([*MERGES, WITH_MOMENTUM], [1, 2]), ids=str)
def test_checkpoints_have_the_updates_of_their_rounds_once(engine, tmp_path, merge, every):
    workers = 3 - every
    options = combined(OPTIONS, data=data(), merge=merge)
    # one worker has twice the batches in a round
    whole = trainer_of(engine, workers)
    scale = 2 / workers
    assert height(fit(whole, Checkpoint(tmp_path, every, keep=9), **options)) == scale * expected(
        5, merge
    )
    saved = list_checkpoints(tmp_path)
    assert list(saved) == ([0, 1, 2, 3, 4] if every == 1 else [1, 3, 4])
    for number, path in saved.items():
        assert height(read_checkpoint(path)["parameters"]) == scale * expected(number + 1, merge)
    again = trainer_of(engine, workers)
    assert height(fit(again, resume=saved[1], **options)) == scale * expected(5, merge)
    assert [record["samples"] for record in again.history] == [32] * 5
    assert [record["round"] for record in again.history] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("merge", "workers"), each_value(MERGES, [1, 2, 4]), ids=str)
def test_resuming_with_any_workers_trains_every_sample_once(tmp_path, merge, workers):
    options = combined(OPTIONS, data=data(), merge=replace(merge, unit="blocks"), num_epochs=2)
    with pytest.raises(KeyboardInterrupt):
        fit(trainer_of("serial"), Checkpoint(tmp_path, 2), InterruptAt(3), **options)
    assert list(list_checkpoints(tmp_path)) == [1]
    again = trainer_of("serial", workers)
    if workers == 2:
        fit(again, Checkpoint(tmp_path, 2), resume=True, **options)
    else:
        with pytest.warns(UserWarning, match="not bit for bit"):
            fit(again, Checkpoint(tmp_path, 2), resume=True, **options)
    assert sum(record["samples"] for record in again.history) == 2 * 32
    # A round of two workers has four batches each, and a round with four workers moves as much with
    # twice the data.
    moved = {1: 2 * 4 + 4 * 4, 2: 2 * 4 + 2 * 4, 4: 2 * 4 + 4}
    assert height(again.get_parameters()) * BATCHES == moved[workers]


@pytest.mark.parametrize("merge", MERGES, ids=str)
def test_a_stopped_fit_saves_nothing_of_rounds_under_way(engine, tmp_path, merge):
    stopped = trainer_of(engine, ballast=500_000)  # so that merging takes a while
    kept = Checkpoint(tmp_path, every=99, keep=9)
    end = height(fit(stopped, kept, StopAfter(0), data=data(), **combined(OPTIONS, merge=merge)))
    assert end == len(stopped.history)
    for number, path in list_checkpoints(tmp_path).items():
        assert height(read_checkpoint(path)["parameters"]) == number + 1
    again = trainer_of(engine, ballast=500_000)
    assert height(fit(again, kept, data=data(), resume=True, **combined(OPTIONS, merge=merge))) == 5
