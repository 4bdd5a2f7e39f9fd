"""The best round with several callbacks, and when the monitored field changes."""

import pytest

from compss_train import DistributedTrainer
from compss_train.callbacks import Checkpoint, EarlyStopping
from compss_train.training.checkpoints.storage import list_checkpoints
from tests.helpers.models import ADAM, blocked, classification, mlp

X, Y = classification(samples=40)
OPTIONS = {"batch_size": 10, "validation_data": (X, Y), "progress": False}


def train(callbacks, epochs=4, **options):
    trainer = DistributedTrainer(2, engine="serial", seed=0, threads=1)
    trainer.build(mlp(), ADAM, "cross_entropy", "accuracy")
    trainer.fit(*blocked(X, Y, 2), num_epochs=epochs, callbacks=callbacks, **OPTIONS, **options)
    return trainer


def test_the_best_checkpoint_is_the_best_of_checkpoint(tmp_path):
    """``EarlyStopping`` has another best round, the first one, which is not kept."""
    stopping = EarlyStopping("loss", mode="max", patience=9)
    trainer = train([stopping, Checkpoint(tmp_path, keep=1, best="val_loss")])
    assert stopping.best_round == 0
    trainer.restore(tmp_path, best=True)
    assert trainer.history[-1]["round"] == 3


@pytest.mark.parametrize("keep", [1, 9])
def test_each_of_two_folders_has_its_own_best(tmp_path, keep):
    """Also where the best round of one is kept in the other, too."""
    lowest, highest = tmp_path / "lowest", tmp_path / "highest"
    trainer = train(
        [
            Checkpoint(highest, keep=keep, best="val_loss", mode="max"),
            Checkpoint(lowest, keep=keep, best="val_loss"),
        ]
    )
    for folder, number in ((lowest, 3), (highest, 0)):
        trainer.restore(folder, best=True)
        assert trainer.history[-1]["round"] == number
    trainer.restore(lowest.rename(tmp_path / "moved"), best=True)  # of either


def test_restoring_the_best_needs_a_checkpoint_with_best(tmp_path):
    trainer = train([EarlyStopping("loss"), Checkpoint(tmp_path)])
    with pytest.raises(ValueError, match="records no best round"):
        trainer.restore(tmp_path, best=True)


def test_a_resumed_fit_with_another_field_finds_its_best_round(tmp_path):
    train([EarlyStopping("loss"), Checkpoint(tmp_path, best="loss")], epochs=2)
    stopping = EarlyStopping("val_loss", mode="max", patience=9)
    checkpoint = Checkpoint(tmp_path, keep=1, best="val_loss", mode="max")
    trainer = train([stopping, checkpoint], resume=True)
    losses = {record["round"]: record["val_loss"] for record in trainer.history}
    assert checkpoint.best_round == max(losses, key=losses.get) == 0
    assert list(list_checkpoints(tmp_path)) == [0, 3]
    assert stopping.best_round == 2  # it begins anew
    assert stopping.best == max(losses[2], losses[3])


def test_build_resets_the_rounds(tmp_path):
    train([Checkpoint(tmp_path)])
    trainer = train([EarlyStopping("loss", mode="max", patience=1)], resume=tmp_path, epochs=6)
    assert (trainer.resumed_from, trainer.stopped) != (None, None)
    trainer.build(mlp(), ADAM, "cross_entropy")
    assert (trainer.resumed_from, trainer.stopped) == (None, None)
    assert trainer.snapshot().progress is None
