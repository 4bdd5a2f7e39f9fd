"""A fit with a schedule that is resumed ends with the bits of one that was not interrupted."""

from functools import partial

import pytest
from torch.optim.lr_scheduler import ReduceLROnPlateau

from compss_train import DistributedTrainer, Gradients
from compss_train.callbacks import Callback, Checkpoint
from tests.helpers.models import MODES, SGD, assert_same_bits, awkward_net, blocked, classification
from tests.model.lr_schedules.schedulers import SCHEDULERS

X, Y = classification(samples=62)
SCHEDULES = {
    "one cycle": SCHEDULERS["one cycle"],
    "plateau": partial(ReduceLROnPlateau, factor=0.5, patience=0, threshold=0.2),
}
EPOCHS = 6


class Stop(Callback):
    """Ends a fit after a round."""

    def __init__(self, number):
        self.number = number

    def on_round_end(self, trainer, record):
        if record["round"] == self.number:
            trainer.stop("enough")


def built(engine, schedule, **options):
    trainer = DistributedTrainer(2, engine=engine, seed=3, threads=1)
    trainer.build(awkward_net(), SGD, "cross_entropy", schedule=schedule, **options)
    return trainer


def fitted(trainer, **options):
    return trainer.fit(*blocked(X, Y, 6), num_epochs=EPOCHS, batch_size=8, **options)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_resumed_fit_has_the_bits_of_an_uninterrupted_one(name, mode, tmp_path):
    options = {"gradients": Gradients(clip_norm=0.5, accumulate=2)}
    whole = built("serial", SCHEDULES[name], **options)
    expected = fitted(whole, **mode)
    rounds = len(whole.history)
    for stopped in range(0, rounds - 1, max(2, 2 * rounds // 5)):
        folder = tmp_path / str(stopped)
        fitted(built("serial", SCHEDULES[name], **options), callbacks=[Checkpoint(folder), Stop(stopped)], **mode)
        resumed = built("serial", SCHEDULES[name], **options)
        assert_same_bits(fitted(resumed, resume=folder, **mode), expected)
        assert [record["lr"] for record in resumed.history] == [record["lr"] for record in whole.history]
    if name == "plateau" and rounds > 3:
        assert whole.history[-1]["lr"] < SGD["lr"] / 2


def test_resuming_with_another_schedule_is_a_warning(tmp_path):
    fitted(
        built("serial", SCHEDULES["plateau"], gradients=Gradients(accumulate=2)),
        callbacks=[Checkpoint(tmp_path), Stop(2)],
    )
    for schedule in (None, SCHEDULES["one cycle"]):
        with pytest.warns(UserWarning, match=r"schedule was .*Plateau.*; accumulate was 2, and is 1"):
            fitted(built("serial", schedule), resume=tmp_path)
    fitted(built("serial", None), callbacks=[Checkpoint(tmp_path / "none"), Stop(2)])
    with pytest.warns(UserWarning, match="schedule was None, and is .*ReduceLROnPlateau"):
        fitted(built("serial", SCHEDULES["plateau"]), resume=tmp_path / "none")
