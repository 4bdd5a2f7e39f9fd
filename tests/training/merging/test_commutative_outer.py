"""Commutative merging with an outer optimizer, whose momentum waits for as many arrivals as there are workers."""

import os

import numpy as np
import pytest

from compss_train import Merge
from compss_train.callbacks import Checkpoint
from compss_train.training.checkpoints.storage import list_checkpoints
from tests.helpers.callbacks import StopAfter
from tests.helpers.models import MODES, SGD, assert_close, assert_same_bits, blocked, classification, mlp, named
from tests.helpers.small_fits import PLAIN_SGD, STILL, assert_alike, combined, fit, fitted, trainer_of
from tests.helpers.tolerances import sgd_error
from tests.training.test_resuming_commutative import data, height
from tests.training.test_resuming_commutative import trainer_of as trainer_of_steps

NESTEROV = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
EXACT = {"optimizer": "sgd", "lr": 0.5, "momentum": 0.5, "nesterov": True}
COMMUTATIVE = {"merge": "commutative"}


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_learning_rate_of_1_without_momentum_has_the_bits_of_no_outer_optimizer(mode):
    with_outer, without = trainer_of(), trainer_of()
    outer = {"optimizer": "sgd", "lr": 1.0}
    assert_same_bits(
        fit(with_outer, **combined(mode, COMMUTATIVE, merge=Merge(outer_optimizer=outer))),
        fit(without, **combined(mode, COMMUTATIVE)),
    )


def test_one_worker_is_synchronous_nesterov():
    x, y = classification(samples=60)
    options = {**STILL, "num_epochs": 2, "batch_size": 10, "merge": Merge(unit="batches", outer_optimizer=NESTEROV)}
    ours, theirs = (
        fitted("serial", 1, *blocked(x, y, 6), **combined(options, merge=merge))
        for merge in ("commutative", "synchronous")
    )
    assert_close(ours, theirs, sgd_error(np.float32, 2 * 12, 0.1 * 0.7 * 1.9, samples=10, momentum=0.9))


def test_one_worker_has_the_same_bits_on_every_engine(engine):
    there, here = trainer_of(engine, workers=1), trainer_of(workers=1)
    for trainer in (there, here):
        fit(trainer, **combined(COMMUTATIVE, merge=Merge(outer_optimizer=NESTEROV)))
    assert_alike(there, here)


@pytest.mark.filterwarnings("ignore:5 workers share 2 blocks")
def test_a_worker_without_samples_changes_nothing():
    two, five = (trainer_of(workers=workers, net=mlp, optimizer=SGD) for workers in (2, 5))
    options = combined(COMMUTATIVE, merge=Merge(outer_optimizer=NESTEROV), blocks=2)
    assert_same_bits(fit(two, **options), fit(five, **options))


def test_a_second_fit_continues_with_the_momentum():
    once, twice = trainer_of(workers=1), trainer_of(workers=1)
    options = combined(COMMUTATIVE, merge=Merge(outer_optimizer=NESTEROV))
    fit(once, num_epochs=4, **options)
    fit(twice, num_epochs=1, **options)
    fit(twice, num_epochs=3, **options)
    assert_alike(once, twice)


def test_another_merge_starts_anew():
    trainer, fresh = trainer_of(optimizer=PLAIN_SGD, net=mlp), trainer_of(optimizer=PLAIN_SGD, net=mlp)
    before = fit(trainer, num_epochs=1, **combined(COMMUTATIVE, merge=Merge(outer_optimizer=NESTEROV)))
    fresh.set_parameters(before)
    fresh._model.epochs = 1
    assert_same_bits(*(fit(each, num_epochs=1, merge=Merge(outer_optimizer=NESTEROV)) for each in (trainer, fresh)))
    assert trainer.snapshot().merge["outer"]["kind"] == "SGD momentum nesterov"
    assert fit(trainer, num_epochs=1, **COMMUTATIVE).keys() == before.keys()
    assert trainer.snapshot().merge["outer"] is None


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


def test_nothing_is_left_in_the_engine(shared_local):
    def files():
        return {name for folder in shared_local._folders.paths for name in os.listdir(folder)}

    before = files()
    trainer = trainer_of_steps(shared_local, ballast=20_000)
    for merge in ("synchronous", "commutative", "synchronous"):
        fit(trainer, num_epochs=2, batch_size=8, data=data(), merge=Merge(merge, outer_optimizer=EXACT))
    trainer.close()
    shared_local.fetch([shared_local.submit(len, "abc")])
    assert files() == before


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            {"outer_optimizer": {"optimizer": "adam", "lr": 0.1}},
            'outer_optimizer=.*take merge="synchronous"',
        ),
        (
            {"outer_optimizer": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9}},
            'add "nesterov": True',
        ),
        (
            {"outer_optimizer": {"optimizer": "sgd", "lr": -1.0}},
            "lr=-1.0: give a number of at least 0",
        ),
        ({"outer_optimizer": {"optimizer": "sgd"}}, "needs a learning rate"),
        ({"outer_optimizer": NESTEROV, "rule": "halving"}, "rule='halving' has no outer optimizer"),
    ],
    ids=named,
)
def test_wrong_options(options, error):
    with pytest.raises(ValueError, match=error):
        fit(trainer_of(), merge=Merge("commutative", **options))
