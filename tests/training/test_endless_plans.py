"""Plans of fits without an end, and when tasks are submitted."""

import pytest
from torch.optim.lr_scheduler import OneCycleLR

from compss_train import Merge, SerialEngine
from compss_train.training import PostLocal
from compss_train.training.data_checks import MAX_PASSES
from tests.helpers.callbacks import CopyingEngine, NoTasks
from tests.helpers.cases import each_value
from tests.helpers.models import assert_same_bits, blocked, classification
from tests.helpers.small_fits import fit, trainer_of

MANY = 10**7


class Clock:
    """Each look at it takes a second."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        self.now += 1
        return self.now


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"merge": Merge(every=PostLocal(epochs=2, then=3), unit="blocks")},
        {"schedule": lambda epoch: 1.0},
    ],
    ids=["plain", "merge_every is a function", "schedule"],
)
def test_a_fit_until_max_time_begins_at_once(options):
    """Of ten million epochs it looks at those that it trains, and at the first ones."""
    schedule = {name: options[name] for name in options if name == "schedule"}
    trainer = trainer_of(clock=Clock(), **schedule)
    fit(
        trainer,
        num_epochs=MANY,
        max_time=40,
        **{n: options[n] for n in options if n not in schedule},
    )
    assert trainer.stopped == "max_time"
    assert 0 < len(trainer.history) < 40


def test_planning_a_long_round_ends_when_the_time_is_up():
    trainer = trainer_of(clock=Clock(), workers=1)
    before = trainer.get_parameters()
    after = fit(trainer, blocks=1, num_epochs=MANY, max_time=100, merge=Merge(every=0))
    assert trainer.stopped == "max_time"
    assert list(trainer.history) == []
    assert {name: array.tobytes() for name, array in after.items()} == {
        name: array.tobytes() for name, array in before.items()
    }


@pytest.mark.parametrize("merge_every", [0, MANY, lambda epoch: MANY])
def test_a_round_of_too_many_passes_is_an_error(merge_every):
    trainer = trainer_of(NoTasks())
    with pytest.raises(
        ValueError,
        match=r"pass over 7 blocks 10000000 times.*Merge\(every=...\) of at most 1428571",
    ):
        fit(trainer, num_epochs=MANY, merge=Merge(every=merge_every))
    assert MAX_PASSES // 7 == 1428571


def test_a_schedule_that_ends_too_early_is_found_at_once():
    trainer = trainer_of(
        NoTasks(), schedule=lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=5)
    )
    with pytest.raises(ValueError, match="schedule= fails in epoch 6"):
        fit(trainer, num_epochs=MANY)


def test_more_epochs_than_anybody_trains_are_an_error():
    with pytest.raises(ValueError, match=f"num_epochs={10**30}: give at most 1000000000 epochs"):
        fit(trainer_of(NoTasks()), num_epochs=10**30)
    trainer = trainer_of(clock=Clock())
    fit(trainer, num_epochs=10**9, max_time=20)
    assert trainer.stopped == "max_time"


def trained(engine, x, y, workers, **options):
    trainer = trainer_of(engine, workers, seed=3)
    return trainer.fit(x, y, num_epochs=3, batch_size=4, shuffle="total", **options)


MERGING = [
    {},
    {"merge": Merge(every=2)},
    {"merge": Merge(every=0)},
    {"merge": Merge(unit="blocks")},
]


@pytest.mark.parametrize(("merging", "workers"), each_value(MERGING, [2, 5]))
def test_pieces_train_to_the_same_bits_as_blocks(workers, merging):
    x, y = classification(samples=57)
    engine = CopyingEngine()
    ours = trained(engine, *blocked(x, y, 7), workers, **merging)
    assert_same_bits(ours, trained(SerialEngine(), *blocked(x, y, 7), workers, **merging))
    rounds = engine.submitted.count("merge_part")
    if (
        merging.get("merge") == Merge(every=0) and workers < 5
    ):  # who each need more than half of the samples in 3 epochs
        assert "split_rows" not in engine.submitted
    elif not merging:
        assert engine.submitted.count("split_rows") == 7 * rounds
