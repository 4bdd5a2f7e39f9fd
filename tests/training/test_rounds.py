"""The rounds of a fit of many workers."""

import gc

import pytest

from compss_train import DistributedTrainer
from compss_train.callbacks import Callback
from compss_train.training import rounds
from tests.helpers.models import SGD, blocked, classification, mlp


@pytest.fixture(autouse=True)
def nothing_frozen():
    """The tests' own process leaves modules out of garbage collection."""
    before = gc.get_freeze_count()
    gc.unfreeze()
    yield
    gc.unfreeze()
    if before:
        gc.freeze()


class Frozen(Callback):
    """Notes how many objects are left out of garbage collection."""

    def __init__(self):
        self.counts = []

    def on_round_end(self, trainer, record):
        self.counts.append(gc.get_freeze_count())


def frozen_in_a_fit():
    x, y = classification(samples=20)
    frozen = Frozen()
    with DistributedTrainer(2, engine="serial", seed=0, threads=1) as trainer:
        trainer.build(mlp(), SGD, "cross_entropy")
        trainer.fit(*blocked(x, y, 2), num_epochs=1, batch_size=5, callbacks=[frozen], progress=False)
    return frozen.counts


def test_garbage_collection_leaves_out_earlier_objects_only_during_fits_of_many_workers(monkeypatch):
    assert frozen_in_a_fit() == [0]
    monkeypatch.setattr(rounds, "MANY_WORKERS", 2)
    (during,) = frozen_in_a_fit()
    assert during > 10_000
    assert gc.get_freeze_count() == 0


def test_what_the_program_left_out_stays_so(monkeypatch):
    monkeypatch.setattr(rounds, "MANY_WORKERS", 2)
    gc.freeze()
    before = gc.get_freeze_count()
    counts = [*frozen_in_a_fit(), gc.get_freeze_count()]
    assert all(0.9 * before < count <= before for count in counts)  # some of them are freed meanwhile
