"""ReduceLROnPlateau, which depends on what rounds measure: at the same round on every engine."""

from functools import partial

import pytest
from torch.optim.lr_scheduler import ReduceLROnPlateau

from compss_train import DistributedTrainer
from compss_train.model.optimizers import optimizer_factory
from compss_train.model.schedule import make_schedule
from tests.helpers.models import SGD, awkward_net, classification, mlp

X, Y = classification(samples=62)
PLATEAU = partial(ReduceLROnPlateau, factor=0.5, patience=0, threshold=0.2)


def built(engine, workers=2):
    trainer = DistributedTrainer(workers, engine=engine, seed=3, threads=1)
    trainer.build(awkward_net(), SGD, "cross_entropy", schedule=PLATEAU)
    return trainer


def expected_lrs(losses):
    """What torch's own scheduler makes of these losses."""
    optimizer = optimizer_factory(SGD)(mlp().parameters())
    scheduler, lrs = PLATEAU(optimizer), []
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


def test_a_resumed_schedule_uses_the_new_factor():
    first, second = (
        make_schedule(partial(PLATEAU, factor=factor), mlp(), optimizer_factory(SGD)) for factor in (0.5, 0.1)
    )
    for epoch in range(3):
        first.at(epoch)
        first.observe({"loss": 1.0})
    second.load_state_dict(first.state_dict())
    before = first.lr(2)
    assert first.lr(3) == pytest.approx(before / 2)
    assert second.lr(3) == pytest.approx(before / 10)
