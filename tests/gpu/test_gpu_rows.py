"""Rows stay on the GPU that they were moved to, as the rows that they are, until their fit ends in
whatever way.
"""

import gc
import threading
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from compss_train import DistributedTrainer, Merge
from compss_train.callbacks import Callback
from compss_train.data.block_passes import BlockPass
from compss_train.data.order import RowRange
from compss_train.training import rounds
from compss_train.worker.gpu_rows import rows_on_gpus
from compss_train.worker.source import source_of
from compss_train.worker.work import Residency
from tests.helpers.models import SGD, classification
from tests.helpers.shared_engine import SharedEngine
from tests.helpers.waiting import wait_until
from tests.worker.assignments import job_of, whole

X = torch.arange(40.0)[:, None]
GPU = "cuda:0"


@pytest.fixture(autouse=True)
def nothing_stays():
    """No test leaves anything on a GPU."""
    gc.collect()
    before = torch.cuda.memory_allocated(GPU)
    yield
    for fit in ("a", "b"):
        rows_on_gpus().release(fit)
    gc.collect()
    assert torch.cuda.memory_allocated(GPU) == before


def trained(*passes, x=X, device=GPU, fit="a", shuffled=False, idle_seconds=60.0):
    """Return the samples of these passes of a task, as they are cut on the device."""
    resident = Residency(fit=fit, last_epoch=1, share=1.0, idle_seconds=idle_seconds)
    work = replace(whole(x), block_passes=passes, blocks=(0, 1))
    job = job_of(5, resident=resident, row_seed=0 if shuffled else None)
    found = []
    with source_of(job, work, [x, x + 100]).open(passes, device) as opened:
        for block_pass, samples in zip(passes, opened, strict=True):
            columns = samples.cut(0, block_pass.size)
            assert columns[0].device == torch.empty(0, device=device).device
            found += columns[0][:, 0].int().tolist()
    return found


def stay(device=GPU):
    """Return how many bytes stay on a GPU."""
    return torch.cuda.memory_allocated(device)


@st.composite
def parts_of_passes(draw):
    """Return a part of a pass over some rows of a block."""
    first, stop = draw(st.sampled_from([(0, 40), (0, 20), (20, 40), (5, 25)]))
    one = BlockPass(
        draw(st.integers(0, 1)),
        draw(st.integers(0, 1)),
        stop - first,
        first=draw(st.sampled_from([0, first])),
    )
    low, high = sorted(
        draw(st.lists(st.integers(0, one.size), min_size=2, max_size=2, unique=True))
    )
    return one.part(low, high) if draw(st.booleans()) else one


@given(
    parts=st.lists(parts_of_passes(), min_size=2, max_size=9),
    shuffled=st.booleans(),
    tasks=st.integers(1, 9),
)
def test_each_part_has_its_own_rows_whatever_stays(parts, shuffled, tasks):
    rows_on_gpus().release("a")
    for number in range(tasks):
        passes = parts[number::tasks]
        on_cpu = trained(*passes, device="cpu", shuffled=shuffled)
        assert trained(*passes, shuffled=shuffled) == on_cpu
        if not shuffled:
            ranges = [(each.first + each.skip + 100 * each.block, each.size) for each in passes]
            assert on_cpu == [row for first, size in ranges for row in range(first, first + size)]


def test_other_rows_of_a_block_are_other_rows():
    passes = [BlockPass(0, 0, 20, first=first) for first in (0, 20, 5)] + [
        BlockPass(1, 0, 20),
        BlockPass(0, 0, 10),
    ]
    for _ in range(2):
        assert trained(*passes) == [
            *range(20),
            *range(20, 40),
            *range(5, 25),
            *range(100, 120),
            *range(10),
        ]


def test_rows_leave_in_the_last_epoch_of_the_fit():
    """Also those that other workers train then; they stay while samples of the last pass remain."""
    before = stay()
    trained(BlockPass(0, 0, 20), BlockPass(1, 0, 20))
    kept = stay()
    trained(BlockPass(0, 0, 20), BlockPass(1, 0, 10, skip=10))
    trained(BlockPass(0, 1, 10, remaining=10))
    assert stay() == kept > before
    trained(BlockPass(0, 1, 10, skip=10))
    assert stay() == before


def test_a_fit_does_not_get_the_rows_of_another_in_a_thread():
    found = {}
    met = threading.Barrier(2)

    def train(fit, x):
        met.wait()
        for _ in range(20):
            found.setdefault(fit, []).append(trained(BlockPass(0, 0, 40), x=x, fit=fit))

    threads = [threading.Thread(target=train, args=each) for each in (("a", X), ("b", X + 1000))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"a": 20 * [[*range(40)]], "b": 20 * [[*range(1000, 1040)]]}
    trained(BlockPass(0, 0, 40))
    one = stay()
    rows_on_gpus().release("b")
    assert stay() < one
    rows_on_gpus().release("a")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("shuffled", [False, True])
def test_the_current_gpu_may_be_another_one_in_the_next_task(shuffled):
    """As under COMPSs and Ray, whose tasks all train on "cuda", the GPU that the runtime gives
    them.
    """
    expected = trained(BlockPass(0, 0, 40), shuffled=shuffled)
    try:
        for number in (0, 1, 0):
            torch.cuda.set_device(number)
            assert trained(BlockPass(0, 0, 40), device="cuda", shuffled=shuffled) == expected
    finally:
        torch.cuda.set_device(0)
    rows_on_gpus().release("a")
    assert stay("cuda:1") == 0


def test_rows_leave_when_their_fit_is_idle():
    trained(BlockPass(0, 0, 20), fit="b")
    others = stay()
    trained(BlockPass(0, 0, 20), idle_seconds=0.01)
    wait_until(lambda: stay() == others)
    assert trained(BlockPass(0, 0, 20)) == list(range(20))


class Ends(Callback):
    """Ends a fit in its third round."""

    def __init__(self, how):
        self.how = how
        self.now = 0.0

    def on_round_end(self, trainer, record):
        if record["round"] == 2:
            if isinstance(self.how, BaseException):
                raise self.how
            if self.how == "stop":
                trainer.stop("enough")
            self.now = 1e6


def ended_early(engine, how, x, y):
    """Let a fit end early that would last long."""
    callback = Ends(how)
    with DistributedTrainer(2, engine=engine, seed=0, threads=1) as trainer:
        trainer.clock = lambda: callback.now
        trainer.build(nn.Linear(x.shape[1], 3), SGD, "cross_entropy", num_gpu=1)
        options = {
            "merge": Merge(every=3, unit="batches"),
            "max_time": 1e5,
            "callbacks": [callback],
        }
        with suppress(RuntimeError, KeyboardInterrupt):
            trainer.fit(x, y, num_epochs=10**6, batch_size=25, progress=False, **options)


HOWS = ["stop", "max_time", RuntimeError("of a callback"), KeyboardInterrupt()]


@pytest.mark.parametrize("how", HOWS, ids=repr)
def test_a_fit_that_ends_early_leaves_nothing_in_this_process(how):
    x, y = classification(samples=200)
    ended_early("serial", how, x, y)


def bytes_of_process():
    """Return the bytes on the GPU now and at most; a task."""
    return torch.cuda.memory_allocated(GPU), torch.cuda.max_memory_allocated(GPU)


@pytest.mark.parametrize("how", HOWS, ids=repr)
def test_a_fit_that_ends_early_leaves_nothing_in_other_processes(how, monkeypatch):
    monkeypatch.setattr(rounds, "IDLE_SECONDS", 0.3)
    engine = SharedEngine(1)
    try:
        ended_early(engine, how, *classification(samples=200))
        wait_until(lambda: engine.fetch([engine.submit(bytes_of_process)])[0][0] == 0)
    finally:
        engine.end()


def kept_rows():
    """Keep rows of a fit that begins no other pass; return the bytes that they have; a task."""
    resident = Residency(fit="ended", last_epoch=9, share=1.0, idle_seconds=1.0)
    rows_on_gpus().moved(resident, GPU, RowRange(0, 0, 200), [torch.ones(200, 6)])
    return torch.cuda.memory_allocated(GPU)


def test_rows_leave_a_process_whose_fit_has_ended_elsewhere():
    engine = SharedEngine(1)
    try:
        assert engine.fetch([engine.submit(kept_rows)])[0] >= 200 * 6 * 4
        wait_until(lambda: engine.fetch([engine.submit(bytes_of_process)])[0][0] == 0)
    finally:
        engine.end()
