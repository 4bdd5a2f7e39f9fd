"""Merges by batches do not change the batches of a worker, whatever the number of batches between two merges."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, reject
from hypothesis import strategies as st

from compss_train import BufferSpec, FileDataset, Gradients, Merge
from compss_train.callbacks import Checkpoint
from compss_train.data import BlockedTensor
from compss_train.training.data_source import DataSource
from compss_train.training.fit_options import FitOptions
from compss_train.worker.batches import CarriedBuffer, placed_batches
from compss_train.worker.source import source_of
from compss_train.worker.work import Work
from tests.helpers.callbacks import StopAfter
from tests.helpers.models import assert_same_bits, mlp
from tests.helpers.small_fits import X, Y, combined, fit, trainer_of
from tests.training.checkpoints.trees import assert_same
from tests.worker.assignments import DEALT

BATCHES = {"merge": Merge(unit="batches")}


def batches_of_workers(x, options, workers, epochs):
    """Return the batches of each worker with their places, by epoch, over all rounds."""
    made = [[[] for _ in range(epochs)] for _ in range(workers)]
    held = [None] * workers
    starts = tuple(np.cumsum([0, *x.sizes[:-1]]).tolist())
    for round_ in options.round_plan(x.sizes, workers, 4, 0, 0).rounds():
        for worker, share in enumerate(round_.assignments):
            if not round_.counts[worker]:
                continue
            blocks = tuple(range(len(x.sizes)))
            draws = round_.draws[worker] if round_.draws else None
            reading = replace(options.reading(DataSource(x=x), 4), blocks=blocks, starts=starts)
            work = Work(share, reading, draws=draws)
            before = copy.deepcopy(held[worker])
            for _ in range(2):  # a task can be run again
                buffer = CarriedBuffer(held[worker])
                placed = placed_batches(work, source_of(work, list(x.blocks())), "cpu", buffer)
                found = [(place, batch.x.tolist()) for place, batch in placed]
                assert_same(held[worker], before)
            held[worker] = buffer.after
            made[worker][round_.epoch - 1] += found
    assert held == [None] * workers
    return made


@given(
    **DEALT,
    every=st.integers(1, 9),
    batching=st.sampled_from([{"batch_size": 1}, {"batch_size": 7}, {"num_batches_per_worker": 1}]),
    buffer=st.none()
    | st.builds(BufferSpec, st.just("FIFO"), st.integers(1, 70))
    | st.builds(BufferSpec, st.just("FIRO"), st.integers(21, 100), st.integers(0, 21))
    | st.builds(BufferSpec, st.just("FIRO"), st.just(100), passes=st.integers(1, 3)),
)
def test_the_batches_are_those_of_rounds_of_epochs(
    samples, blocks, workers, shuffle, shuffle_seed, every, batching, buffer
):
    x = BlockedTensor.from_array(torch.arange(samples), (min(samples, blocks), 1))
    shuffles = {"shuffle": shuffle, "shuffle_block_data": shuffle_seed is not None}
    of_epochs = FitOptions(num_epochs=2, buffer=buffer, **shuffles, **batching)
    if buffer is not None and buffer.capacity < batching.get("batch_size", max(x.sizes)):
        reject()  # too small for a batch
    of_batches = replace(of_epochs, merge=Merge(every=every, unit="batches"))
    expected = batches_of_workers(x, of_epochs, workers, 2)
    assert batches_of_workers(x, of_batches, workers, 2) == expected
    places = [place for of_worker in expected for of_epoch in of_worker for place, _ in of_epoch]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("shuffle", ["blocks", "total", None])
@pytest.mark.parametrize("every", [1, 3])
def test_one_worker_learns_the_same_however_often_it_merges(shuffle, every):
    one, other = trainer_of(workers=1), trainer_of(workers=1)
    fit(one, shuffle=shuffle)
    fit(other, shuffle=shuffle, **combined(BATCHES, merge=Merge(every=every)))
    assert_same_bits(one.get_parameters(), other.get_parameters())
    assert len(other.history) == 3 * -(-sum(-(-n // 6) for n in [9, 8, 8, 8, 8, 8, 8]) // every)


def test_a_merge_ends_a_step_of_several_batches():
    steps = []
    for options in ({}, combined(BATCHES, merge=Merge(every=3))):
        trainer = trainer_of(workers=1, gradients=Gradients(accumulate=2))
        fit(trainer, num_epochs=1, blocks=1, batch_size=10, **options)
        steps.append(trainer.snapshot().workers[0].optimizer["state"][0]["step"].item())
    assert steps == [3, 4]  # of 6 batches: in twos, and in twos until a merge after three


@pytest.mark.parametrize("kind", ["Reservoir", "BatchReservoir"])
@pytest.mark.parametrize("every", [1, 4])
def test_a_reservoir_returns_each_sample_of_the_epoch(kind, every):
    x = BlockedTensor.from_array(torch.arange(57), (4, 1))
    spec = BufferSpec(kind, 20, 5)
    options = FitOptions(num_epochs=2, batch_size=6, buffer=spec, **combined(BATCHES, merge=Merge(every=every)))
    for of_worker in batches_of_workers(x, options, 1, 2):
        for made in of_worker:
            assert {sample for _, batch in made for sample in batch} == set(range(57))
            assert len(made) >= -(-57 // 6)


BUFFERS = [
    BufferSpec("FIFO", 16),
    BufferSpec("FIRO", 24, threshold=9),
    BufferSpec("FIRO", 57, threshold=9, passes=2),
]


@pytest.mark.parametrize("buffer", BUFFERS, ids=str)
def test_merging_more_often_changes_nothing_with_a_buffer(shared_local, buffer):
    one, other = trainer_of(workers=1), trainer_of(shared_local, workers=1)
    fit(one, buffer=buffer)
    fit(other, buffer=buffer, **combined(BATCHES, merge=Merge(every=3)))
    assert_same_bits(one.get_parameters(), other.get_parameters())
    assert [state.buffer for state in other.snapshot().workers] == [None]


def test_other_workers_cannot_resume_inside_an_epoch_with_buffers(tmp_path):
    options = combined(BATCHES, buffer=BUFFERS[1], merge=Merge(every=5))
    trainer = trainer_of(workers=2)
    fit(trainer, Checkpoint(tmp_path, keep=99), **options)
    epochs = [record["epoch"] for record in trainer.history]
    inside, at_the_end = (tmp_path / f"round-{n:06}" for n in (0, epochs.index(2) - 1))
    with pytest.raises(ValueError, match="by 2 workers, whose buffers hold samples of it, so that 3 cannot resume"):
        fit(trainer_of(workers=3), resume=inside, **options)
    with pytest.warns(UserWarning, match="num_workers was 2, and is 3"):
        fit(trainer_of(workers=3), resume=at_the_end, **options)


@pytest.mark.parametrize("buffer", [None, *BUFFERS], ids=str)
def test_files_that_are_skipped_leave_the_others(tmp_path, buffer):
    for number in range(5):
        np.savez(tmp_path / f"{number}.npz", x=X[number::5], y=Y[number::5])
    files = FileDataset(f"{tmp_path}/*.npz", on_bad_file="skip")
    (tmp_path / "3.npz").write_bytes(b"nothing")
    for every in (1, 2):
        trainer = trainer_of(workers=2, net=mlp)  # the last batch may be of one sample
        with pytest.warns(UserWarning, match="skipped"):
            fit(trainer, data=(files,), num_epochs=2, buffer=buffer, **combined(BATCHES, merge=Merge(every=every)))
        trained = sum(record["samples"] for record in trainer.history)
        assert trained == sum(w["samples"] for r in trainer.history for w in r["workers"])
        assert trained == 2 * (57 - 11) * (buffer.passes if buffer else 1)


@pytest.mark.parametrize("merge", ["commutative", "parameter_server"])
@pytest.mark.parametrize("buffer", [None, BUFFERS[1]], ids=str)
def test_workers_that_do_not_wait_train_every_sample_once(merge, buffer):
    trainer = trainer_of(workers=3)
    fit(trainer, buffer=buffer, num_epochs=2, **combined(BATCHES, merge=Merge(merge, every=2)))
    assert sum(record["samples"] for record in trainer.history) == 2 * len(X)


def test_a_new_fit_starts_with_empty_buffers():
    trainer = trainer_of(workers=2)
    fit(trainer, StopAfter(0), buffer=BUFFERS[1], **BATCHES)
    assert all(state.buffer is not None for state in trainer.snapshot().workers)
    fit(trainer, buffer=BUFFERS[1], num_epochs=1, **BATCHES)
    assert sum(record["samples"] for record in trainer.history[1:]) == len(X)
    assert [state.buffer for state in trainer.snapshot().workers] == [None, None]
