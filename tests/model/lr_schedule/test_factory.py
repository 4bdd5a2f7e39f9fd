"""What a schedule may be, and what is said of what it may not be."""

from functools import partial

import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import ReduceLROnPlateau

from compss_train import DistributedTrainer
from compss_train.model.lr_schedule import make_schedule
from compss_train.model.optimizers import optimizer_factory
from compss_train.model.schedule import Schedule
from tests.helpers.callbacks import NoTasks
from tests.helpers.models import SGD, awkward_net, classification, mlp

OTHER = torch.optim.SGD(mlp().parameters(), lr=0.1)


def nothing(optimizer):
    lr_scheduler.StepLR(optimizer, 1)


@pytest.mark.parametrize(
    ("spec", "error", "name"),
    [
        (0.9, TypeError, "schedule=0.9 is not callable"),
        ("cosine", TypeError, "schedule='cosine' is not callable"),
        (lr_scheduler.StepLR(OTHER, 3), TypeError, "is not callable"),
        (
            lambda _: lr_scheduler.StepLR(OTHER, 3),
            ValueError,
            "of another optimizer than the one it is called",
        ),
        (lr_scheduler.StepLR, ValueError, "functools.partial(StepLR, step_size=10)"),
        (partial(lr_scheduler.OneCycleLR, max_lr=0.1), ValueError, "total_steps"),
        (lambda o: lr_scheduler.StepLR(o), ValueError, "an optimizer, and raised"),
        (nothing, ValueError, "returned None when called with an optimizer, and raised TypeError"),
        (lambda epoch: "fast", ValueError, "returned 'fast' when called with epoch 0"),
        (lambda epoch: 1 / epoch, ValueError, "raised ZeroDivisionError"),
        (lambda epoch: float("nan"), ValueError, "schedule= sets the learning rate to nan"),
        (lambda epoch: -1.0, ValueError, "schedule= sets the learning rate to -0.05"),
        (
            partial(lr_scheduler.ReduceLROnPlateau, mode="max"),
            ValueError,
            "mode='max') is stepped with val_loss",
        ),
        (
            Schedule(partial(lr_scheduler.ReduceLROnPlateau, mode="max"), monitor="loss"),
            ValueError,
            "mode='max') is stepped with loss",
        ),
        (
            Schedule(lambda epoch: 0.5**epoch, monitor="loss"),
            ValueError,
            "monitor='loss': a LambdaLR looks at no number",
        ),
    ],
)
def test_invalid_schedules_are_errors(spec, error, name, raises):
    trainer = DistributedTrainer(2, engine=NoTasks())
    with raises(error, name):
        trainer.build(mlp(), SGD, "cross_entropy", schedule=spec)


@pytest.mark.parametrize(
    "spec",
    [
        partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=3),
        {0: 1.0, 1: 1.0, 2: 0.5, 3: 0.5}.__getitem__,
        lambda epoch: 1.0 if epoch < 4 else float("inf"),
    ],
)
def test_a_too_short_schedule_is_found_before_any_task(spec, raises):
    x, y = classification()
    trainer = DistributedTrainer(2, engine=NoTasks(), seed=0)
    trainer.build(mlp(), SGD, "cross_entropy", schedule=spec)
    for epochs in (5, 6):  # asking again changes nothing
        with raises(ValueError, "schedule= fails in epoch 4"):
            trainer.fit(x, y, num_epochs=epochs, batch_size=5)
    with pytest.raises(RuntimeError, match="something was published"):
        trainer.fit(x, y, num_epochs=4, batch_size=5)


X, Y = classification(samples=62)
PLATEAU = partial(ReduceLROnPlateau, factor=0.5, patience=0, threshold=0.2)


def built(engine, workers=2, schedule=PLATEAU, metric=None):
    trainer = DistributedTrainer(workers, engine=engine, seed=3, threads=1)
    trainer.build(awkward_net(), SGD, "cross_entropy", metric, schedule=schedule)
    return trainer


def expected_lrs(losses, plateau=PLATEAU):
    """What torch's own scheduler makes of these losses."""
    optimizer = optimizer_factory(SGD)(mlp().parameters())
    scheduler = plateau(optimizer)
    lrs = []
    for loss in losses:
        lrs.append(optimizer.param_groups[0]["lr"])
        scheduler.step(loss)
    return lrs


@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
@pytest.mark.parametrize("validation", [None, (X[40:], Y[40:])], ids=["train", "validation"])
def test_plateaus_are_found_by_the_loss_of_the_previous_round(engine, merge, validation):
    trainer = built(engine)
    trainer.fit(X[:40], Y[:40], num_epochs=8, batch_size=5, merge=merge, validation_data=validation)
    losses = [record["loss" if validation is None else "val_loss"] for record in trainer.history]
    assert [record["lr"] for record in trainer.history] == expected_lrs(losses)
    assert trainer.history[-1]["lr"] < 0.05


def test_a_plateau_may_be_of_another_number_that_rises():
    highest = partial(ReduceLROnPlateau, mode="max", factor=0.5, patience=0)
    schedule = Schedule(highest, monitor="val_accuracy")
    trainer = built("serial", schedule=schedule, metric="accuracy")
    options = {"num_epochs": 8, "batch_size": 5, "progress": False}
    trainer.fit(X[:40], Y[:40], validation_data=(X[40:], Y[40:]), **options)
    measured = [record["val_accuracy"] for record in trainer.history]
    assert [record["lr"] for record in trainer.history] == expected_lrs(measured, highest)


@pytest.mark.parametrize(
    ("monitor", "advice"),
    [("val_accuracy", "give fit validation_data="), ("accurcy", "did you mean accuracy?")],
)
def test_a_plateau_of_a_number_that_records_lack_is_an_error(monitor, advice, raises):
    schedule = Schedule(partial(ReduceLROnPlateau, mode="max"), monitor=monitor)
    trainer = built(NoTasks(), schedule=schedule, metric="accuracy")
    with raises(ValueError, advice):
        trainer.fit(X, Y, num_epochs=1, batch_size=5)


def test_a_resumed_schedule_uses_the_new_factor():
    first, second = (
        make_schedule(partial(PLATEAU, factor=factor), mlp(), optimizer_factory(SGD))
        for factor in (0.5, 0.1)
    )
    for epoch in range(3):
        first.at(epoch)
        first.observe({"loss": 1.0})
    second.load_state_dict(first.state_dict())
    before = first.rates(2)["lr"]
    assert first.rates(3)["lr"] == pytest.approx(before / 2)
    assert second.rates(3)["lr"] == pytest.approx(before / 10)
