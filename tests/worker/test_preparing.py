"""Transforms between the training steps, with random draws of their own; copies to GPUs."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import Merge
from compss_train.callbacks import Checkpoint
from compss_train.data.block_passes import Place
from compss_train.data.order import transform_seed
from compss_train.model.devices import pieces
from compss_train.model.random_state import random_state
from compss_train.model.training_spec import TrainingSpec
from compss_train.worker import batches as batches_module
from compss_train.worker.batches import Batch, placed_batches
from compss_train.worker.preparing import Preparation
from compss_train.worker.source import source_of
from tests.helpers.models import SGD, assert_same_bits, awkward_net, blocked, classification, mlp, state_arrays
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


def noisy_at_times(x):
    return noisy_by_numpy(x) if torch.rand(()) < 0.5 else nn.functional.dropout(x, 0.2)


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


@pytest.mark.parametrize("transform", [noisy, noisy_by_all])
@pytest.mark.parametrize("options", [{"shuffle": "total"}, {"merge": Merge(every=3, unit="batches")}], ids=str)
def test_resumed_fits_draw_what_they_would_have_drawn(tmp_path, transform, options):
    whole = trainer_of(transform=transform)
    fit(whole, Checkpoint(tmp_path, keep=99), num_epochs=2, **options)
    rounds = sorted(tmp_path.glob("round-*"))
    for folder in rounds[:-1]:
        resumed = trainer_of(transform=transform)
        fit(resumed, num_epochs=2, resume=folder, **options)
        assert_same_bits(whole.get_parameters(), resumed.get_parameters())


def replica_of(transform, net=None):
    own = mlp() if net is None else net
    spec = TrainingSpec(net=own, optimizer=torch.optim.SGD, loss=nn.MSELoss(), transform=transform)
    return spec.replica(state_arrays(own), "cpu", training=True)


def placed(number):
    return [(Place(0, 0, 6 * n), Batch(torch.full((2, 6), float(n)))) for n in range(number)]


def prepared(transform, number):
    return Preparation(replica_of(transform), 0).of(iter(placed(number)))


def test_draws_of_transforms_leave_those_of_the_step_alone():
    steps = []
    for transform in (scaled, noisy, noisy_by_all, noisy_at_times):
        with random_state(4, "cpu"):
            steps.append([torch.rand(5) for _ in prepared(transform, 9)])
    for other in steps[1:]:
        assert all(map(torch.equal, steps[0], other))


def test_a_batch_is_made_when_it_is_used():
    made = []

    def source():
        for each in placed(20):
            made.append(each)
            yield each

    for number, _ in enumerate(Preparation(replica_of(scaled), 0).of(source()), start=1):
        assert len(made) == number
    assert len(made) == 20


def test_without_a_transform_batches_are_as_they_come():
    source = iter(placed(3))
    assert Preparation(replica_of(None), 0).of(source) is source


def test_a_batch_has_the_samples_that_the_transform_got():
    tripled = prepared(lambda x: x.repeat(3, 1), 2)
    assert [(batch.samples, len(batch.x)) for _, batch in tripled] == [(2, 6), (2, 6)]


@pytest.mark.parametrize("number", [0, 2])
def test_an_error_of_the_transform_comes_with_its_batch(number):
    def transform(x):
        if x[0, 0] == number:
            raise ZeroDivisionError("this batch")
        return x

    taken = []
    with pytest.raises(ZeroDivisionError, match="this batch") as error:
        taken += (place.position for place, _ in prepared(transform, 4))
    assert taken == [6 * n for n in range(number)]
    assert "batch of x with shape (2, 6)" in error.value.__notes__[0]


@pytest.mark.parametrize("transform", [None, scaled, noisy, noisy_by_numpy])
def test_single_batches_are_those_of_an_iterator(transform):
    preparation = Preparation(replica_of(transform), 0)
    for (place, batch), (_, other) in zip(placed(7), prepared(transform, 7), strict=True):
        assert torch.equal(preparation.prepare(place, batch).x, other.x)


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
