"""Clipping, accumulation and batches with NaN in an online fit."""

from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch

from compss_train import DistributedTrainer, Gradients
from compss_train.data.order import transform_seed
from compss_train.model.devices import random_state
from tests.helpers.models import (
    SGD,
    assert_same_bits,
    awkward_net,
    classification,
    mlp,
    noisy,
    noisy_by_numpy,
)
from tests.online.fits import batches_of, fit_online, plain_loop
from tests.online.simulations import simulate_rows, slow_copy

X, Y = classification(samples=60)


def slow_noisy(x):
    return noisy(slow_copy(x))


def built(engine, net, **options):
    trainer = DistributedTrainer(1, engine=engine, seed=3, threads=1)
    trainer.build(net, SGD, "cross_entropy", **options)
    return trainer


@pytest.mark.parametrize("merge_every", [1, 1000])
def test_a_batch_with_nan_is_skipped_and_counted(local, merge_every):
    x = X.copy()
    x[9] = np.nan
    trainer = built(local, mlp(), gradients=Gradients(on_nan="skip"))
    ours = fit_online(trainer, simulate_rows, [(x, Y)], every=merge_every)
    kept = np.r_[0:7, 14:60]
    plain = plain_loop(
        mlp(), partial(torch.optim.SGD, lr=0.05, momentum=0.9), batches_of(7, X[kept], Y[kept])
    )
    assert_same_bits(ours, plain)
    assert sum(record.get("skipped_batches", 0) for record in trainer.history) == 1
    assert sum(record["workers"][0].get("skipped_batches", 0) for record in trainer.history) == 1
    assert sum(record["samples"] for record in trainer.history) == 53


@pytest.mark.parametrize(("transform", "max_batches"), [(slow_noisy, None), (noisy_by_numpy, 5)])
def test_a_transform_runs_beside_the_steps_with_seeds_of_its_own(local, transform, max_batches):
    """The network has Dropout, whose draws are as if the transform drew nothing."""

    def transformed():
        for number, (x, y) in enumerate(islice(batches_of(7, X, Y), max_batches)):
            with random_state(transform_seed(3, 0, 0, number), "cpu"):
                x = transform(x)
            yield x, y

    trainer = built(local, awkward_net(), transform=transform)
    ours = fit_online(trainer, simulate_rows, [(X, Y)], max_batches=max_batches)
    plain = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    assert_same_bits(ours, plain_loop(awkward_net(), plain, transformed()))
