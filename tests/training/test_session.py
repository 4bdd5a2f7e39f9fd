"""What a trainer keeps from one call to the next, and lets go."""

import gc

from compss_train import DistributedTrainer, LocalEngine, SerialEngine
from tests.helpers.models import SGD, classification, mlp


def test_own_engines_start_when_needed_and_again_after_close(monkeypatch, forked_processes):
    monkeypatch.setenv("COMPSS_TRAIN_ENGINE", "local")
    x, y = classification()
    with DistributedTrainer(1, seed=0) as trainer:
        trainer.build(mlp(), SGD, "cross_entropy")
        assert trainer._workplace.engine is None
        trainer.fit(x, y, num_epochs=1, batch_size=5)
        assert isinstance(trainer._workplace.engine, LocalEngine)
        trainer.close()
        assert trainer._workplace.engine is None
        assert set(trainer.evaluate(x, y)) == {"loss"}
    assert trainer._workplace.engine is None


class Remembering(SerialEngine):
    """Counts what is published and not deleted."""

    def __init__(self):
        super().__init__()
        self.held = set()

    def publish(self, value):
        ref = super().publish(value)
        self.held.add(ref)
        return ref

    def delete(self, refs):
        super().delete(refs)
        self.held.difference_update(refs)


def test_a_closed_trainer_leaves_nothing_in_a_given_engine():
    x, y = classification()
    engine = Remembering()
    with DistributedTrainer(2, engine=engine, seed=0, threads=1) as trainer:
        trainer.build(mlp(), SGD, "cross_entropy")
        trainer.fit(x, y, num_epochs=2, batch_size=5, merge="commutative")
        trainer.evaluate(x, y)
    gc.collect()
    assert not engine.held
