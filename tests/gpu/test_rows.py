"""A GPU trains exactly the rows that the CPU trains, however rounds are cut and whatever stays on
the GPU.
"""

from itertools import accumulate, count, product
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from compss_train import BufferSpec, DistributedTrainer, Merge, PartialShuffle
from compss_train.data.partitioning import RoundPlan
from compss_train.data.ragged import Ragged
from compss_train.model.training_spec import TrainingSpec
from compss_train.training.data_source import as_data_source
from compss_train.training.fit import FitOptions
from compss_train.worker.batches import cut_batches
from compss_train.worker.source import source_of
from compss_train.worker.state import CarriedBuffer
from compss_train.worker.work import Residency, Work
from tests.gpu.conftest import REAL
from tests.helpers.cases import MAKE_SLOW

SEED = 3
GPUS = torch.cuda.device_count()
SPEC = TrainingSpec(net=nn.Linear(1, 1), optimizer=torch.optim.SGD, loss=nn.MSELoss())
FITS = count()
"""Numbers of fits, as rows stay on GPUs by the names of their fits."""


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
    return as_data_source(np.arange(samples, dtype=np.float32)[:, None], None, min(samples, blocks))


def sequences(samples, blocks):
    """Return blocks whose samples repeat their numbers."""
    items = [[number] * (1 + number * 7 % 4) for number in range(samples)]
    return as_data_source(Ragged(items), None, min(samples, blocks))


def batches_of(data, workers, gpus, **given):
    """Return all batches of a fit, worker after worker in each round."""
    options = FitOptions(**given)
    x = data.columns["x"]
    plan = RoundPlan(
        x.sizes,
        workers,
        options.num_epochs,
        SEED,
        shuffle=options.order,
        batching=options.batching,
        merge_every=options.merge.every,
        merge_unit=options.merge.unit,
        put_counts=options.buffer.put_counts
        if options.buffer and options.carries_buffers
        else None,
    )
    resident = Residency(
        fit=f"fit {next(FITS)}", last_epoch=options.num_epochs - 1, share=1.0, idle_seconds=30.0
    )
    job = options.job(data, SPEC, SEED, resident=resident)
    begins = tuple(accumulate(x.sizes[:-1], initial=0))
    carried = {}
    found = []
    for round_, worker in product(plan.rounds(), range(workers)):
        passes = round_.assignments[worker]
        if not round_.counts[worker]:
            continue
        total = any(each.sample_numbers is not None for each in passes)
        numbers = tuple(range(len(x.sizes))) if total else tuple({each.block: 0 for each in passes})
        work = Work(
            passes,
            device=f"cuda:{worker % gpus}" if gpus else "cpu",
            blocks=numbers,
            starts=tuple(begins[number] for number in numbers) if total else (),
            draws=round_.draws[worker] if round_.draws else None,
        )
        buffer = CarriedBuffer(carried.get(worker))
        source = source_of(job, work, [list(x.blocks())[number] for number in numbers])
        for batch in cut_batches(source, work.device, buffer):
            rows = batch.x.padded(-1) if isinstance(batch.x, Ragged) else batch.x
            assert rows.device == torch.device(work.device)
            found.append((worker, *batch[:3], rows[:, 0].int().tolist()))
        carried[worker] = buffer.after
    return found


UNITS = ("epochs", "blocks", "batches")
EVERY = 3, Cycle(9, 3, 2), Cycle(1, 2, 9), Cycle(9, 1)
ORDERS = [*product(("blocks", "total", None), (True, False))]
WAYS = [*product(UNITS, EVERY, ORDERS, (1, 2))]
"""144 ways to cut the rounds of a fit on 3 blocks of 2 batches."""


def options_of(unit, every, order):
    shuffle, rows = order
    return {
        "merge": Merge(every=every, unit=unit),
        "shuffle": shuffle,
        "shuffle_block_data": rows,
        "batch_size": 4,
    }


@pytest.mark.parametrize("unit", UNITS)
def test_however_rounds_are_cut_batches_are_those_of_a_cpu(unit):
    wrong = []
    for _, every, order, workers in (way for way in WAYS if way[0] == unit):
        options = {"num_epochs": 4, **options_of(unit, every, order)}
        on_gpus, on_cpu = (
            batches_of(numbered(24, 3), workers, gpus, **options) for gpus in (GPUS, 0)
        )
        if on_gpus != on_cpu:
            wrong.append((every, order, workers))
    assert not wrong


FEW = [
    ("batches", EVERY[0], ("blocks", False), 1),
    ("batches", EVERY[1], (None, False), 2),
    ("batches", EVERY[3], (None, False), 1),
    ("blocks", EVERY[2], ("total", True), 2),
    ("epochs", EVERY[1], ("blocks", True), 1),
]


@pytest.mark.parametrize("ways", [FEW, pytest.param(WAYS, **MAKE_SLOW)], ids=["few", "all"])
@pytest.mark.skipif(REAL, reason="real GPUs sum in other orders")
def test_however_rounds_are_cut_parameters_are_those_of_a_cpu(ways):
    wrong = []
    for unit, every, order, workers in ways:
        results = []
        options = options_of(unit, every, order)
        for gpus in (0, min(workers, GPUS)):
            torch.manual_seed(0)
            with DistributedTrainer(workers, engine="serial", seed=SEED, threads=1) as trainer:
                trainer.build(
                    nn.Linear(1, 1),
                    {"optimizer": "sgd", "lr": 1e-4, "momentum": 0.9},
                    "mse",
                    num_gpu=gpus,
                )
                results.append(
                    trainer.fit(
                        numbered(24, 3).columns["x"], num_epochs=3, progress=False, **options
                    )
                )
        if any(not np.array_equal(results[0][name], results[1][name]) for name in results[0]):
            wrong.append((unit, every, order, workers))
    assert not wrong


intervals = st.integers(1, 9) | st.builds(
    Cycle, st.integers(1, 9), st.integers(1, 9), st.integers(1, 3)
)
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
    unit=st.sampled_from([*UNITS, "batches"]),
    epochs=st.integers(1, 4),
    room=st.lists(st.booleans(), min_size=1, max_size=5),
    kind=st.sampled_from(["numbers", "numbers", "sequences", "bucketed"]),
)
def test_batches_of_gpus_are_those_of_a_cpu(
    samples, blocks, workers, shuffle, rows, batching, buffer, every, unit, epochs, room, kind
):
    """Also if blocks sometimes find room on the GPU, and sometimes not."""
    partial = isinstance(shuffle, PartialShuffle)
    assume(not partial or (rows and buffer is None))
    assume(kind == "numbers" or (samples > 3 and not partial and buffer is None))
    assume(kind != "bucketed" or (rows and shuffle != "total"))
    data = numbered(samples, blocks) if kind == "numbers" else sequences(samples, blocks)
    assume(batching.get("num_batches_per_worker", 1) <= min(data.sizes))
    options = {
        "num_epochs": epochs,
        "shuffle": shuffle,
        "shuffle_block_data": rows,
        "bucket_by_length": kind == "bucketed",
        "buffer": buffer,
        **batching,
    }
    options["merge"] = Merge(every=every, unit=unit)
    on_cpu = batches_of(data, workers, 0, **options)
    asked = iter(room * 1000)
    with patch.object(torch.cuda, "mem_get_info", lambda device: (2**30 * next(asked), 2**30)):
        assert batches_of(data, workers, GPUS, **options) == on_cpu
    assert sorted(number for *_, batch in on_cpu for number in batch) == sorted(
        [*range(samples)] * epochs
    )
