"""``DataSource`` and ``PublishedData``: the users' data stay as they were."""

import numpy as np
import pytest

from compss_train import BlockedTensor
from compss_train.engines import LocalEngine
from compss_train.training.data_source import as_data_source
from compss_train.training.published_data import PublishedData
from tests.helpers.small_fits import trainer_of

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(4000, 6)).astype(np.float32)  # more than travels in messages
Y = RANDOM.integers(0, 3, 4000)
W = RANDOM.uniform(size=4000)


@pytest.fixture
def local(forked_processes):
    with LocalEngine(processes=1, threads=1) as engine:
        yield engine


def test_a_fit_and_an_evaluation_replace_no_block_of_the_users(local):
    x, y, weights = (BlockedTensor.from_array(array, 4) for array in (X, Y, W))
    users = (x, y, weights)
    blocks_before = [list(tensor.blocks()) for tensor in users]
    bytes_before = [tensor.collect().tobytes() for tensor in users]
    with trainer_of(local, workers=2) as trainer:
        trainer.fit(
            x,
            y,
            sample_weight=weights,
            num_epochs=1,
            batch_size=100,
            progress=False,
            validation_data=(x, y),
        )
        trainer.evaluate(x, y)
        trainer.predict(x)
    for tensor, blocks, content in zip(users, blocks_before, bytes_before, strict=True):
        assert all(now is then for now, then in zip(tensor.blocks(), blocks, strict=True))
        assert tensor.collect().tobytes() == content
        next(tensor.blocks())[:1] = 0  # and they can still be written to


def test_what_is_made_for_a_fit_is_held_once(local):
    """The blocks that a data source made become views of the engine's values."""
    source = as_data_source(X[::2], Y[::2], 4)  # copies, in order in memory
    made = [*source.columns["x"].blocks()]
    PublishedData(local, source)
    held = [*source.columns["x"].blocks()]
    assert all(np.array_equal(now, then) for now, then in zip(held, made, strict=True))
    assert not any(np.shares_memory(now, then) for now, then in zip(held, made, strict=True))
