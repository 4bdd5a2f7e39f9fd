from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from compss_train.data import BlockedTensor
from compss_train.data.partitioning import RoundPlan
from compss_train.training.fit_options import FitOptions
from compss_train.worker.batches import batches
from compss_train.worker.source import source_of
from compss_train.worker.work import Work
from tests.worker.assignments import DEALT

# How samples are cut into blocks, dealt to workers and ordered.


@given(
    **DEALT,
    size=st.integers(1, 9),
)
def test_batches_hold_each_sample_once_with_x_and_y_paired(samples, blocks, workers, shuffle, shuffle_seed, size):
    blocks = min(samples, blocks)
    x = BlockedTensor.from_array(np.arange(samples * 2, dtype=np.uint8).reshape(-1, 2), (blocks, 1))
    y = BlockedTensor.from_array(torch.arange(samples).to(torch.bfloat16), (blocks, 1))
    starts = tuple(np.cumsum([0, *x.sizes[:-1]]).tolist())
    seen = []
    for round_ in RoundPlan(x.sizes, workers, 1, 4, shuffle=shuffle).rounds():
        for share in round_.assignments:
            options = FitOptions(num_epochs=1, batch_size=size, shuffle_block_data=shuffle_seed is not None)
            reading = replace(options.reading(x.sizes, 4), blocks=tuple(range(blocks)), starts=starts)
            work = Work(share, reading)
            for batch_x, batch_y, weight, _ in batches(work, source_of(work, [*x.blocks(), *y.blocks()]), "cpu"):
                assert weight is None
                assert (batch_x.dtype, batch_y.dtype) == (torch.uint8, torch.bfloat16)
                assert 1 <= len(batch_x) <= size
                assert torch.equal(batch_x[:, 0], (batch_y * 2).to(torch.uint8))
                seen += batch_y.int().tolist()
    assert sorted(seen) == list(range(samples))
    if shuffle is None and shuffle_seed is None and workers == 1:
        assert seen == list(range(samples))
