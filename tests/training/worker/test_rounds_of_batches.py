"""Merges by batches do not change the batches of a worker, whatever the number of batches between two merges."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compss_train.data import BlockedTensor
from compss_train.training.fit_options import FitOptions
from compss_train.training.worker.batches import batches
from compss_train.training.worker.source import Shard, source_of
from tests.helpers.models import assert_same_bits
from tests.helpers.small_fits import fit, trainer_of
from tests.training.worker.assignments import DEALT

BATCHES = {"merge_unit": "batches"}


def batches_of_workers(x, options, workers, epochs):
    """Return the batches of each worker, by epoch, over all rounds."""
    made = [[[] for _ in range(epochs)] for _ in range(workers)]
    starts = tuple(np.cumsum([0, *x.sizes[:-1]]).tolist())
    for round_ in options.round_plan(x.sizes, workers, 4, 0, 0).rounds():
        for worker, share in enumerate(round_.assignments):
            blocks = tuple(range(len(x.sizes)))
            shard = Shard(options=options, assignment=share, blocks=blocks, starts=starts, seed=4)
            found = [batch.x.tolist() for batch in batches(shard, source_of(shard, list(x.blocks()), []), "cpu")]
            assert sum(map(len, found)) == round_.counts[worker]
            made[worker][round_.epoch - 1] += found
    return made


@given(
    **DEALT,
    every=st.integers(1, 9),
    batching=st.sampled_from([{"batch_size": 1}, {"batch_size": 7}, {"num_batches_per_worker": 1}]),
)
def test_the_batches_are_those_of_rounds_of_epochs(
    samples, blocks, workers, shuffle, shuffle_seed, every, batching
):
    x = BlockedTensor.from_array(torch.arange(samples), (min(samples, blocks), 1))
    of_epochs = FitOptions(num_epochs=2, shuffle=shuffle, shuffle_block_data=shuffle_seed is not None, **batching)
    of_batches = replace(of_epochs, merge_unit="batches", merge_every=every)
    expected = batches_of_workers(x, of_epochs, workers, 2)
    assert batches_of_workers(x, of_batches, workers, 2) == expected


@pytest.mark.parametrize("shuffle", ["blocks", "total", None])
@pytest.mark.parametrize("every", [1, 3])
def test_one_worker_learns_the_same_however_often_it_merges(shuffle, every):
    one, other = trainer_of(workers=1), trainer_of(workers=1)
    fit(one, shuffle=shuffle)
    fit(other, shuffle=shuffle, merge_every=every, **BATCHES)
    assert_same_bits(one.get_parameters(), other.get_parameters())
    assert len(other.history) == 3 * -(-sum(-(-n // 6) for n in [9, 8, 8, 8, 8, 8, 8]) // every)


def test_a_merge_ends_a_step_of_several_batches():
    steps = []
    for options in ({}, {"merge_every": 3, **BATCHES}):
        trainer = trainer_of(workers=1, accumulate=2)
        fit(trainer, num_epochs=1, blocks=1, batch_size=10, **options)
        steps.append(trainer.snapshot().workers[0].optimizer["state"][0]["step"].item())
    assert steps == [3, 4]  # of 6 batches: in twos, and in twos until a merge after three
