"""Transforms between the training steps, with random draws of their own; copies to GPUs."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from compss_train.data.order import transform_seed
from compss_train.model.devices import pieces, random_state
from compss_train.worker import batches as batches_module
from compss_train.worker.batches import placed_batches
from compss_train.worker.source import source_of
from tests.helpers.models import SGD, assert_same_bits, awkward_net, blocked, classification, mlp
from tests.helpers.plain_loop import OPTIMIZERS, cut, plain_steps
from tests.helpers.small_fits import fit, trainer_of
from tests.worker.assignments import whole

X, Y = classification(samples=62)


def noisy(x):
    return x + 0.1 * torch.randn(x.shape)


def noisy_by_numpy(x):
    return x + torch.from_numpy(np.random.normal(0, 0.1, x.shape)).float()


def flipped(x):
    return torch.stack([row.flip(0) if random.random() < 0.5 else row for row in x])


def noisy_by_all(x):
    return noisy(flipped(noisy_by_numpy(x)))


def noisy_by_a_seed_of_its_own(x):
    with torch.random.fork_rng():
        torch.manual_seed(8)
        return noisy(x)


def scaled(x):
    return x / 3


RANDOM = [noisy, noisy_by_numpy, flipped, noisy_by_all, noisy_by_a_seed_of_its_own]


def plain_loop(transform, epochs, blocks, batches_of_block, seed):
    """A plain loop, with the transform between two steps."""

    def batches():
        for epoch in range(epochs):
            position = 0
            for number, (x, y) in enumerate(cut(X, Y, blocks, batches_of_block)):
                block, first = divmod(number, batches_of_block)
                position *= first > 0
                with random_state(transform_seed(seed, epoch, block, position), "cpu"):
                    transformed = transform(torch.from_numpy(x.copy()))
                yield transformed, y
                position += len(x)

    return plain_steps(awkward_net(), OPTIMIZERS[0][1], batches(), seed)


@pytest.mark.parametrize("transform", [scaled, *RANDOM])
def test_one_worker_is_the_loop_with_a_seed_a_batch(engine, transform):
    """The network has Dropout, whose draws are as if the transform drew nothing."""
    trainer = trainer_of(engine, 1, seed=3, optimizer=SGD, transform=transform)
    ours = trainer.fit(
        *blocked(X, Y, 4), num_epochs=2, num_batches_per_worker=3, shuffle=None, shuffle_block_data=False
    )
    assert_same_bits(ours, plain_loop(transform, 2, 4, 3, seed=3))


def repeated(x):
    return x.repeat(3, 1)


def test_a_batch_has_the_samples_that_the_transform_got():
    trainer = trainer_of(workers=1, net=lambda: mlp(6, 6), loss="mse", metric=None, transform=repeated)
    trainer.fit(X, num_epochs=1, batch_size=8, progress=False)
    assert trainer.history[0]["workers"][0]["samples"] == len(X)


def test_an_error_of_the_transform_comes_with_its_batch():
    def divide(x):
        if X[20, 0] in x[:, 0]:
            raise ZeroDivisionError("this batch")
        return x

    with pytest.raises(ZeroDivisionError, match="this batch") as error:
        fit(trainer_of(workers=1, transform=divide), data=blocked(X[:57], Y[:57], 1), num_epochs=1, batch_size=6)
    assert "batch of x with shape (6, 6)" in error.value.__notes__[0]


# To a GPU, with a stand-in for its copies.


@pytest.mark.parametrize("shuffled", [False, True])
def test_blocks_go_to_a_gpu_in_pieces(monkeypatch, shuffled):
    x, y = torch.arange(900.0).reshape(300, 3), torch.arange(300)
    copied = []

    def to_device(columns, device):
        copied.append((len(columns[0]), device))
        return tuple(columns)

    monkeypatch.setattr(batches_module, "to_device", to_device)
    monkeypatch.setattr("compss_train.model.devices._PIECE_BYTES", 20 * 50)  # 50 samples
    work = whole(x, 20)
    if shuffled:
        work = work._replace(reading=replace(work.reading, seed=5, shuffle_block_data=True))
    on_gpu, on_cpu = (
        [batch for _, batch in placed_batches(work, source_of(work, [x, y]), device)]
        for device in ("cuda:1", "cpu")
    )
    for ours, theirs in zip(on_gpu, on_cpu, strict=True):
        assert torch.equal(ours.x, theirs.x)
        assert torch.equal(ours.y, theirs.y)
    to_gpu = [samples for samples, device in copied if device == "cuda:1"]
    assert sum(to_gpu) == 300
    assert max(to_gpu) <= 50 + 20
    assert len(to_gpu) < len(on_gpu)


def test_a_batch_larger_than_a_piece_is_one():
    rows = (torch.zeros(4, 2**20),)
    assert list(pieces([(0, 3), (3, 4)], rows, "cuda")) == [[(0, 3)], [(3, 4)]]
    assert list(pieces([(0, 1), (1, 2)], (torch.zeros(2, 3),), "cuda")) == [[(0, 1), (1, 2)]]
    assert list(pieces([(0, 1), (1, 2)], (torch.zeros(2, 3),), "cpu")) == [[(0, 1)], [(1, 2)]]
