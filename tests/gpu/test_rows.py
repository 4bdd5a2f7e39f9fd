"""A GPU trains exactly the rows that the CPU trains, however rounds are cut and whatever stays on the GPU."""

from itertools import accumulate, product
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from compss_train import BlockedTensor, BufferSpec, DistributedTrainer, Merge, PartialShuffle
from compss_train.data.block_passes import blocks_of
from compss_train.data.partitioning import RoundPlan
from compss_train.training.data_source import DataSource
from compss_train.training.fit import FitOptions
from compss_train.worker.batches import cut_batches
from compss_train.worker.source import source_of
from compss_train.worker.state import CarriedBuffer
from compss_train.worker.work import Work
from tests.gpu.conftest import REAL
from tests.helpers.cases import MAKE_SLOW
from tests.helpers.models import assert_same_bits

SEED = 3


class Cycle:
    """An interval that is a function of the epoch."""

    def __init__(self, *values):
        self.values = values

    def __call__(self, epoch):
        return self.values[epoch % len(self.values)]

    def __repr__(self):
        return f"every{self.values}"


def numbered(samples, blocks):
    """Return blocks whose samples are their numbers."""
    return BlockedTensor.from_array(np.arange(samples, dtype=np.float32)[:, None], (min(samples, blocks), 1))


def batches_of(x, workers, gpus, **given):
    """Return all batches of a fit as they reach the training step, worker after worker in each round."""
    options, data = FitOptions(**given), DataSource(x=x)
    plan = RoundPlan(
        x.sizes,
        workers,
        options.num_epochs,
        SEED,
        shuffle=options.order,
        batching=options.batching,
        merge_every=options.every,
        merge_unit=options.merge.unit,
        put_counts=options.buffer.put_counts if options.buffer and options.carries_buffers else None,
    )
    common = options.for_workers(data, SEED, options.num_epochs - 1, 1.0)
    begins, carried, found = tuple(accumulate(x.sizes[:-1], initial=0)), {}, []
    for round_, worker in product(plan.rounds(), range(workers)):
        passes = round_.assignments[worker]
        if not passes and not (round_.draws and round_.draws[worker]):
            continue
        total = any(each.sample_numbers is not None for each in passes)
        numbers = tuple(range(len(x.sizes))) if total else blocks_of(passes)
        work = Work(
            common,
            passes,
            device=f"cuda:{worker % gpus}" if gpus else "cpu",
            blocks=numbers,
            starts=tuple(begins[number] for number in numbers) if total else (),
            draws=round_.draws[worker] if round_.draws else None,
        )
        buffer = CarriedBuffer(carried.get(worker))
        source = source_of(work, [list(x.blocks())[number] for number in numbers])
        for batch in cut_batches(work, source, work.device, buffer):
            assert batch.x.device == torch.device(work.device)
            found.append((worker, *batch[:3], batch.x[:, 0].tolist()))
        carried[worker] = buffer.after
    return found


UNITS = ("epochs", "blocks", "batches")
EVERY = (3, Cycle(9, 3, 2), Cycle(1, 2, 9), Cycle(9, 1))
ORDERS = [*product(("blocks", "total", None), (True, False))]
WAYS = [*product(UNITS, EVERY, ORDERS, (1, 2))]
"""144 ways to cut the rounds of a fit on 3 blocks of 2 batches."""


def options_of(unit, every, order):
    shuffle, rows = order
    return {"merge": Merge(every=every, unit=unit), "shuffle": shuffle, "shuffle_block_data": rows, "batch_size": 4}


@pytest.mark.parametrize("unit", UNITS)
def test_however_rounds_are_cut_batches_are_those_of_a_cpu(unit):
    wrong = []
    for _, every, order, workers in (way for way in WAYS if way[0] == unit):
        options = {"num_epochs": 4, **options_of(unit, every, order)}
        on_gpus, on_cpu = (batches_of(numbered(24, 3), workers, gpus, **options) for gpus in (2, 0))
        if on_gpus != on_cpu:
            wrong.append((every, order, workers))
    assert not wrong


# Few of the fits run always: one for each order, each unit and each interval.
ALWAYS = [
    (unit, every, order, 1 + number % 2)
    for number, (order, (unit, every)) in enumerate(zip(ORDERS, [*product(UNITS, EVERY)][::-1], strict=False))
]


@pytest.mark.parametrize(
    ("unit", "every", "order", "workers"),
    [pytest.param(*way, **({} if way in ALWAYS else MAKE_SLOW)) for way in WAYS],
    ids=repr,
)
@pytest.mark.skipif(REAL, reason="real GPUs sum in other orders")
def test_however_rounds_are_cut_parameters_are_those_of_a_cpu(unit, every, order, workers):
    results, options = [], options_of(unit, every, order)
    for gpus in (0, workers):
        torch.manual_seed(0)
        with DistributedTrainer(workers, engine="serial", seed=SEED, threads=1) as trainer:
            trainer.build(nn.Linear(1, 1), {"optimizer": "sgd", "lr": 1e-4, "momentum": 0.9}, "mse", num_gpu=gpus)
            results.append(trainer.fit(numbered(24, 3), num_epochs=3, progress=False, **options))
    assert_same_bits(*results)


intervals = st.integers(1, 9) | st.builds(Cycle, st.integers(1, 9), st.integers(1, 9), st.integers(1, 3))
batchings = st.builds(lambda size: {"batch_size": size}, st.integers(1, 9)) | st.builds(
    lambda number: {"num_batches_per_worker": number}, st.integers(1, 3)
)
buffers = st.none() | st.just(BufferSpec("FIFO", 40)) | st.just(BufferSpec("FIRO", 60, threshold=9))


@given(
    samples=st.integers(1, 40),
    blocks=st.integers(1, 5),
    workers=st.integers(1, 3),
    shuffle=st.sampled_from(["blocks", "total", None, PartialShuffle(11)]),
    rows=st.booleans(),
    batching=batchings,
    buffer=buffers,
    every=intervals,
    unit=st.sampled_from(UNITS),
    epochs=st.integers(1, 4),
    room=st.lists(st.booleans(), min_size=1, max_size=5),
)
def test_batches_of_gpus_are_those_of_a_cpu(
    samples, blocks, workers, shuffle, rows, batching, buffer, every, unit, epochs, room
):
    """Also if blocks sometimes find room on the GPU, and sometimes not."""
    x, partial = numbered(samples, blocks), isinstance(shuffle, PartialShuffle)
    assume(batching.get("num_batches_per_worker", 1) <= min(x.sizes))
    assume(not partial or (rows and buffer is None))
    options = {"num_epochs": epochs, "shuffle": shuffle, "shuffle_block_data": rows, "buffer": buffer, **batching}
    options["merge"] = Merge(every=every, unit=unit)
    on_cpu = batches_of(x, workers, 0, **options)
    asked = iter(room * 1000)
    with patch.object(torch.cuda, "mem_get_info", lambda device: (2**30 * next(asked), 2**30)):
        assert batches_of(x, workers, 2, **options) == on_cpu
    assert sorted(number for *_, batch in on_cpu for number in batch) == sorted([*range(samples)] * epochs)
