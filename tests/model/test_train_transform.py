"""Transforms of training batches: their signatures, and fits that are plain loops with them."""

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer, Gradients, TrainTransform
from compss_train.data.order import transform_seed
from compss_train.model.devices import random_state
from tests.helpers.models import (
    SGD,
    assert_same_bits,
    awkward_net,
    blocked,
    classification,
    noisy,
    noisy_by_numpy,
)
from tests.helpers.plain_loop import OPTIMIZERS, plain_steps, transformed_batches
from tests.helpers.small_fits import fit, trainer_of

X, Y = classification(samples=62)
STILL = {"num_epochs": 2, "num_batches_per_worker": 3, "shuffle": None, "shuffle_block_data": False}


def mixup(x, y):
    """Beta(1, 1) is uniform."""
    order = torch.randperm(len(x))
    share = torch.rand(())
    y = nn.functional.one_hot(y, 3).float()
    return share * x + (1 - share) * x[order], share * y + (1 - share) * y[order]


def relabelled(x, y):
    return x * torch.rand(()), torch.where(torch.rand(()) < 0.1, 0, y)


def plain_loop(function, by_sample, seed):
    def transformed(x, y, place):
        epoch, block, position = place
        results = []
        for number, sample in enumerate(zip(x, y, strict=True) if by_sample else [(x, y)]):
            with random_state(transform_seed(seed, epoch, block, position + number), "cpu"):
                results.append(function(*sample))
        columns = zip(*results, strict=True)
        x, y = (torch.stack(parts) if by_sample else parts[0] for parts in columns)
        return x / 3, y

    batches = transformed_batches(transformed, X, Y, 4, 3, 2)
    return plain_steps(awkward_net(), OPTIMIZERS[0][1], batches, seed)


CASES = [
    (noisy, False),
    (noisy, True),
    (noisy_by_numpy, False),
    (noisy_by_numpy, True),
    (mixup, False),
    (relabelled, True),
]


@pytest.mark.parametrize(("function", "by_sample"), CASES)
def test_one_worker_is_the_plain_loop_with_seeds(engine, function, by_sample):
    """The transform of x follows, and Dropout in the network draws as if nothing else did."""
    trainer = DistributedTrainer(1, engine=engine, seed=3, threads=1)
    train_transform = TrainTransform(function, by_sample=by_sample)
    trainer.build(
        awkward_net(),
        SGD,
        "cross_entropy",
        train_transform=train_transform,
        transform=lambda x: x / 3,
    )
    ours = trainer.fit(*blocked(X, Y, 4), **STILL)
    both = function if function in (mixup, relabelled) else lambda x, y: (function(x), y)
    assert_same_bits(ours, plain_loop(both, by_sample, seed=3))


def test_evaluation_and_prediction_leave_it_out():
    def spoil(x):
        return torch.full_like(x, torch.nan)

    trainer = trainer_of(
        train_transform=spoil, transform=lambda x: x / 3, gradients=Gradients(on_nan="ignore")
    )
    plain = trainer_of(transform=lambda x: x / 3)
    assert trainer.evaluate(X, Y) == plain.evaluate(X, Y)
    np.testing.assert_array_equal(trainer.predict(X), plain.predict(X))
    trainer.fit(X, Y, num_epochs=1, batch_size=20, progress=False)
    assert np.isnan(trainer.history[0]["loss"])


def test_random_draws_in_evaluation_are_a_warning():
    for transform in (noisy, noisy_by_numpy):
        trainer = trainer_of(transform=transform)
        with pytest.warns(UserWarning, match="transform= draws random numbers.*train_transform="):
            trainer.evaluate(X, Y)
        with pytest.warns(UserWarning, match="train_transform="):
            trainer.predict(X)
        with pytest.warns(UserWarning, match="train_transform=") as warned:
            trainer.fit(X, Y, num_epochs=3, batch_size=20, progress=False, validation_data=(X, Y))
        assert len(warned) == 1
    trainer_of(transform=nn.Dropout(0.5)).evaluate(X, Y)  # draws in training only, as modules do


def test_wrong_transforms_are_errors():
    with pytest.raises(TypeError, match=r"train_transform=3.*TrainTransform"):
        trainer_of(train_transform=3)
    with pytest.raises(TypeError, match=r"train_transform.*cannot be pickled"):
        trainer_of(train_transform=(x for x in ()).__next__)
    with pytest.raises(TypeError, match=r"returned a Tensor for x and y; return both, as \(x, y\)"):
        fit(trainer_of(train_transform=lambda x, y: x))
    with pytest.raises(ValueError, match="takes x and y, but the data have no y"):
        trainer_of(train_transform=mixup).check_fit(X, num_epochs=1, batch_size=6)
