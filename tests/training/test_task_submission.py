"""Where a task would read whole blocks to get at some rows, blocks are cut into pieces: with the same result."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from compss_train import BlockedTensor, DistributedTrainer, Merge, SerialEngine
from tests.helpers.models import assert_same_bits, blocked, classification
from tests.helpers.serial_engines import CopyingEngine
from tests.helpers.small_fits import trainer_of


class PayingEngine(CopyingEngine):
    """A serial engine that is said to pay for each value."""

    traits = replace(CopyingEngine.traits, pays_by_value=True)

    def __init__(self):
        super().__init__()
        self.published = []

    def publish(self, value):
        self.published.append(value)
        return super().publish(value)


@pytest.mark.parametrize("shuffle", ["blocks", "total", None])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_columns_travel_as_one_value_where_values_cost(shuffle, columns):
    x, y = classification(samples=57)
    data = [x, *([y.astype(np.float32).reshape(-1, 1)] if columns > 1 else [])]
    weights = {"sample_weight": np.linspace(0.5, 2, len(x), dtype=np.float32)} if columns > 2 else {}
    results = []
    for engine in (PayingEngine(), CopyingEngine(), SerialEngine()):
        trainer = DistributedTrainer(3, engine=engine, seed=3, threads=1)
        torch.manual_seed(0)
        trainer.build(torch.nn.Linear(6, 6 if columns == 1 else 1), {"optimizer": "sgd", "lr": 0.1}, "mse")
        given = [BlockedTensor.from_array(array, (7, 1)) for array in data]
        parameters = trainer.fit(*given, num_epochs=2, batch_size=4, shuffle=shuffle, **weights)
        results.append((parameters, trainer.evaluate(*given), trainer.predict(given[0])))
        if columns > 1 and engine.traits.pays_by_value:
            rows = [value for value in engine.published if isinstance(value, tuple)]
            assert [len(row) for row in rows] == [columns] * 7 + [2] * 7  # of the fit, and of the evaluation
    theirs, *others = results[-1]
    for ours, *mine in results[:-1]:
        assert_same_bits(ours, theirs)
        assert mine[0] == others[0]
        np.testing.assert_array_equal(mine[1], others[1])


def trained(engine, x, y, workers, **options):
    trainer = trainer_of(engine, workers, seed=3)
    return trainer.fit(x, y, num_epochs=3, batch_size=4, shuffle="total", **options)


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize(
    "merging", [{}, {"merge": Merge(every=2)}, {"merge": Merge(every=0)}, {"merge": Merge(unit="blocks")}]
)
def test_pieces_train_to_the_same_bits_as_blocks(workers, merging):
    x, y = classification(samples=57)
    engine = CopyingEngine()
    ours = trained(engine, *blocked(x, y, 7), workers, **merging)
    assert_same_bits(ours, trained(SerialEngine(), *blocked(x, y, 7), workers, **merging))
    rounds = engine.submitted.count("finish")
    if (
        merging.get("merge") == Merge(every=0) and workers < 5
    ):  # who each need more than half of the samples in 3 epochs
        assert "split_rows" not in engine.submitted
    elif not merging:
        assert engine.submitted.count("split_rows") == 7 * rounds
