"""Commutative merging with an outer optimizer, whose momentum waits for as many arrivals as there are workers."""

import pytest

from compss_train import Merge
from compss_train.callbacks import Checkpoint
from compss_train.training.checkpoints import list_checkpoints
from tests.helpers.callbacks import StopAfter
from tests.helpers.small_fits import combined, fit
from tests.training.test_resuming_commutative import data, height
from tests.training.test_resuming_commutative import trainer_of as trainer_of_steps

NESTEROV = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
EXACT = {"optimizer": "sgd", "lr": 0.5, "momentum": 0.5, "nesterov": True}
COMMUTATIVE = {"merge": "commutative"}


def expected_height(rounds):
    """Return how far the network went down if the mean change of every round is 1: all numbers are exact."""
    height, m = 0.0, 0.0
    for _ in range(rounds):
        m = 0.5 * m + 1
        height += 0.5 * (1 + 0.5 * m)
    return height


@pytest.mark.parametrize("workers", [1, 2])
def test_rounds_gather_momentum_and_a_resumed_fit_continues_with_it(engine, tmp_path, workers):
    options = combined(COMMUTATIVE, num_epochs=4, batch_size=2, data=data(), merge=Merge(outer_optimizer=EXACT))
    scale = 2 / workers  # one worker has twice the batches in a round
    whole = trainer_of_steps(engine, workers)
    assert height(fit(whole, Checkpoint(tmp_path, 1, keep=9), **options)) == scale * expected_height(4)
    for path in list_checkpoints(tmp_path).values():
        again = trainer_of_steps(engine, workers)
        assert height(fit(again, resume=path, **options)) == scale * expected_height(4)


def test_a_fit_that_is_stopped_continues_with_the_momentum():
    options = combined(COMMUTATIVE, batch_size=2, data=data(), merge=Merge(outer_optimizer=EXACT))
    stopped = trainer_of_steps("serial")
    fit(stopped, StopAfter(1), num_epochs=4, **options)
    assert len(stopped.history) == 2
    assert height(fit(stopped, num_epochs=2, **options)) == expected_height(4)
