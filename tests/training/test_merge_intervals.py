"""When workers merge, as a function of the epoch."""

import threading
from functools import partial

import numpy as np
import pytest

from compss_train import Merge
from compss_train.training import PostLocal, Quadratic
from compss_train.training.description import described
from tests.helpers.models import assert_same_bits
from tests.helpers.small_fits import X, Y, fit, trainer_of


def test_post_local_sgd_merges_after_every_batch_until_an_epoch():
    assert [PostLocal(epochs=2, then=16)(epoch) for epoch in range(4)] == [1, 1, 16, 16]


def test_the_quadratic_rule_follows_the_learning_rate():
    rule = Quadratic(lr=0.8, growth=0.2, least=2, schedule=lambda epoch: 0.5**epoch)
    assert [rule(epoch) for epoch in range(6)] == [2, 2, 2, 4, 16, 64]
    assert Quadratic(lr=np.float32(0.5), growth=np.float64(1))(0) == 4
    assert Quadratic(lr=0.1, growth=0.3)(7) == 8  # 0.3 / 0.1 is a little less than 3
    assert Quadratic(lr=0.1, growth=0.4, schedule=lambda epoch: min(epoch, 2) / 2, warm_up=2)(0) == 16


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(PostLocal, epochs=0, then=2), "epochs=0: give an integer of at least 1"),
        (partial(PostLocal, epochs=1, then=1.5), "then=1.5: give an integer of at least 1"),
        (partial(Quadratic, lr=0, growth=0.2), "lr=0: give a number above 0"),
        (partial(Quadratic, lr=0.1, growth=-1), "growth=-1: give a number"),
        (partial(Quadratic, lr=0.1, growth=0.2, least=0), "least=0"),
        (partial(Quadratic, lr=0.1, growth=0.2, warm_up=-1), "warm_up=-1"),
        (partial(Quadratic(lr=0.1, growth=1, schedule=lambda epoch: 0), 3), "needs one above 0: end the schedule"),
    ],
)
def test_what_makes_no_sense_is_an_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()
    with pytest.raises(TypeError, match="schedule=3"):
        Quadratic(lr=0.1, growth=0.2, schedule=3)


def rounds_of_epochs(trainer):
    epochs = [record["epoch"] for record in trainer.history]
    return [epochs.count(epoch) for epoch in range(1, max(epochs) + 1)]


def test_epochs_are_counted_over_all_fits():
    trainer = trainer_of(workers=1)
    for _ in range(2):
        fit(trainer, num_epochs=2, blocks=1, merge=Merge(every=PostLocal(epochs=3, then=4), unit="batches"))
    assert rounds_of_epochs(trainer) == [10, 10, 10, 3]
    assert trainer.configuration["fit"]["merge"]["every"] == {"epochs": 3, "then": 4}


@pytest.mark.parametrize("unit", ["epochs", "blocks", "batches"])
def test_a_function_that_is_a_number_is_that_number(shared_local, unit):
    lock = threading.Lock()  # which no other process can be sent
    trainers = trainer_of(), trainer_of(shared_local)
    fit(trainers[0], merge=Merge(every=2, unit=unit))
    fit(trainers[1], merge=Merge(every=lambda epoch: 2 if lock else 1, unit=unit))
    assert_same_bits(*(trainer.get_parameters() for trainer in trainers))


@pytest.mark.parametrize("value", [0, 1.0, True, None])
@pytest.mark.parametrize("unit", ["epochs", "blocks", "batches"])
def test_what_it_returns_is_checked_before_a_task_starts(unit, value):
    trainer = trainer_of()
    every = {0: 1, 1: 1, 2: value}.get
    for check in (trainer.check_fit, trainer.fit):
        with pytest.raises(ValueError, match=r"every\(2\)=.*: give an integer of at least 1"):
            check(X, Y, num_epochs=3, batch_size=6, merge=Merge(every=every, unit=unit))
    assert not trainer.history


def test_descriptions_are_the_same_in_every_process():
    assert "0x" not in str(described(Quadratic(lr=0.1, growth=0.2, schedule=lambda epoch: 1.0)))
