"""Fits that read files: the laws of the core hold, and what does not fit is an error."""

import functools
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from compss_train import (
    BadFileError,
    BlockedTensor,
    BufferSpec,
    FileDataset,
    Merge,
    PartialShuffle,
    PartialShuffleSampler,
    SerialEngine,
)
from compss_train.samplers.loader import FileLoader
from tests.helpers.file_fits import POOLS, SIZES, fitted, rows, write_files
from tests.helpers.models import MODES, assert_same_bits, awkward_net, classification, mlp
from tests.helpers.plain_loop import OPTIMIZERS, plain_steps
from tests.helpers.small_fits import trainer_of
from tests.helpers.tolerances import WIDTHS, loss_error, sum_error


@pytest.fixture(scope="module")
def samples():
    return classification(samples=sum(SIZES))


@pytest.fixture(scope="module")
def files(tmp_path_factory, samples):
    folder = tmp_path_factory.mktemp("files")
    write_files(folder, samples)
    return FileDataset(f"{folder}/*.npz")


@pytest.fixture
def own_files(tmp_path, samples):
    """Files that a test may spoil."""
    write_files(tmp_path, samples)
    return tmp_path


@pytest.fixture(scope="module")
def blocks(samples):
    return tuple(BlockedTensor([[block] for block in rows(array)]) for array in samples)


@pytest.mark.parametrize("shuffle", ["blocks", None])
def test_files_are_blocks(engine, files, blocks, shuffle):
    for number, mode in enumerate(MODES):
        rows_too = (number % 2 == 0) == (shuffle is None)  # each way in every mode, with the other shuffle
        options = {"shuffle": shuffle, "shuffle_block_data": rows_too, **mode}
        ours, history = fitted(engine, 3, files, **options)
        theirs, expected = fitted(SerialEngine(), 3, blocks, **options)
        assert_same_bits(ours, theirs)
        assert [record["loss"] for record in history] == [record["loss"] for record in expected]


def test_relative_paths_are_found_by_all_processes(engine, files, blocks, monkeypatch):
    monkeypatch.chdir(Path(files.files[0]).parent)
    ours, _ = fitted(engine, 3, FileDataset("*.npz"))
    assert_same_bits(ours, fitted(SerialEngine(), 3, blocks)[0])


@pytest.mark.parametrize("spec", [BufferSpec("FIFO", 16), BufferSpec("FIRO", 24, threshold=9)])
def test_files_are_blocks_through_a_buffer_too(engine, files, blocks, spec):
    assert_same_bits(fitted(engine, 2, files, buffer=spec)[0], fitted(SerialEngine(), 2, blocks, buffer=spec)[0])


@pytest.fixture(scope="module")
def in_memory(blocks):
    """Return what the serial engine makes of blocks in memory, by pools and the number of a mode."""
    return functools.cache(
        lambda pools, mode: fitted(
            SerialEngine(), 3, blocks, shuffle=PartialShuffle(11, pools=pools), **MODES[mode]
        )[0]
    )


@pytest.mark.parametrize("pools", [1, 2])
@pytest.mark.parametrize("file_buffer", [1, 2, 10])
def test_partial_shuffles_of_files_and_memory_give_the_same_bits(engine, files, in_memory, pools, file_buffer):
    for number in range(0, len(MODES), 1 if file_buffer == 2 else 3):
        dataset = FileDataset(files.files, file_buffer=file_buffer)
        ours, history = fitted(engine, 3, dataset, shuffle=PartialShuffle(11, pools=pools), **MODES[number])
        assert_same_bits(ours, in_memory(pools, number))
        assert sum(worker["samples"] for record in history for worker in record["workers"]) == 2 * sum(SIZES)


@pytest.mark.parametrize("pools", [1, 2])
def test_one_worker_is_the_plain_loop_over_the_sampler(engine, own_files, pools):
    (own_files / "0.npz").unlink()  # 44 samples make batches of four
    dataset = FileDataset(f"{own_files}/*.npz")
    ours, _ = fitted(engine, 1, dataset, batch_size=4, shuffle=PartialShuffle(11, pools=pools))
    sampler = PartialShuffleSampler(dataset, shuffle_buffer=11, batch_size=4, pools=pools)
    batches = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        batches += [(batch["x"], batch["y"]) for batch in sampler]
    assert_same_bits(ours, plain_steps(awkward_net(), OPTIMIZERS[1][1], batches, seed=0))


def test_every_worker_reads_its_share_and_each_file_once(engine, files):
    _, history = fitted(engine, 2, files, **POOLS)
    for record in history:
        assert sorted(worker["samples"] for worker in record["workers"]) == [28, 29]
        # One file is cut between the two.
        assert sum(worker["files"]["files"] for worker in record["workers"]) <= len(SIZES) + 1
        assert all(worker["files"]["most_held"] <= 10 for worker in record["workers"])


@pytest.mark.parametrize("cache", ["memory", "folder"])
def test_threads_and_a_cache_change_no_bits(engine, files, in_memory, cache, tmp_path):
    cache = cache if cache == "memory" else tmp_path
    for number in range(0, len(MODES), 3):
        dataset = FileDataset(files.files, threads=3, cache=cache)
        ours, history = fitted(engine, 3, dataset, shuffle=PartialShuffle(11), **MODES[number])
        assert_same_bits(ours, in_memory(1, number))
    later = [worker["files"] for record in history[1:] for worker in record["workers"] if record["epoch"] > 1]
    assert all(read["cached"] == read["files"] for read in later)


UNITS = [{"merge": Merge(unit="blocks")}, {"merge": Merge(every=2, unit="batches")}, {}, {"merge": Merge(every=0)}]


@pytest.mark.parametrize("options", UNITS, ids=str)
@pytest.mark.parametrize("shuffle", [POOLS, {"shuffle": "blocks"}, {"buffer": BufferSpec("FIFO", 16)}], ids=str)
def test_a_task_knows_the_files_that_its_worker_needs_next(files, tmp_path, monkeypatch, options, shuffle):
    opened, whole = [], FileLoader.open

    def recorded(self, row_ranges, upcoming=()):
        opened.append(([row_range.file for row_range in row_ranges], list(upcoming)))
        return whole(self, row_ranges, upcoming)

    monkeypatch.setattr(FileLoader, "open", recorded)
    trainer = trainer_of(workers=1)
    dataset = FileDataset(files.files, cache=tmp_path)
    trainer.fit(dataset, num_epochs=2, batch_size=5, progress=False, **shuffle, **options)
    assert opened[-1][1] == []
    for (_, upcoming), (needed, _) in pairwise(opened):
        assert upcoming[: len(needed)] == needed


def test_evaluation_reads_with_threads_and_from_the_cache(files, samples, tmp_path):
    dataset = FileDataset(files.files, threads=4, cache=tmp_path)
    trainer = trainer_of(workers=2)
    trainer.fit(dataset, num_epochs=1, batch_size=5, progress=False)
    rounding = sum_error(np.float32, WIDTHS, 10)
    np.testing.assert_allclose(trainer.predict(dataset), trainer.predict(samples[0]), rtol=0, atol=rounding)
    assert trainer.evaluate(dataset) == trainer.evaluate(files)


def test_evaluate_predict_and_validation_take_files(engine, files, samples):
    x, y = samples
    trainer = trainer_of(engine, 2)
    trainer.fit(files, num_epochs=1, batch_size=5, validation_data=files, **POOLS)
    measured = trainer.evaluate(files)
    rounding = loss_error(np.float32, len(x))
    assert measured["loss"] == pytest.approx(trainer.evaluate(x, y)["loss"], abs=rounding)
    assert trainer.history[-1]["val_loss"] == pytest.approx(measured["loss"], abs=rounding)
    outputs = trainer.predict(x)
    np.testing.assert_allclose(trainer.predict(files), outputs, rtol=0, atol=sum_error(np.float32, WIDTHS, 10))


def test_the_fit_reads_any_reader_the_user_has(engine, samples):
    parts = dict(zip("abcd", zip(*map(rows, samples), strict=True), strict=True))

    def reader(filename, get_data=False):
        x, y = parts[filename[-1]]
        return ({"images": x, "labels": y}, len(x)) if get_data else len(x)

    dataset = FileDataset([f"store://{name}" for name in parts], reader, x="images", y="labels")
    ours, _ = fitted(engine, 2, dataset, **POOLS)
    assert all(np.isfinite(array).all() for array in ours.values())


# -- wrong input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": "total"}, r"take PartialShuffle\(\)"),
        ({"shuffle": PartialShuffle(), "shuffle_block_data": False}, "leave buffer= and shuffle_block_data= out"),
        (
            {"shuffle": PartialShuffle(), "buffer": BufferSpec("FIFO", 9)},
            "leave buffer= and shuffle_block_data= out",
        ),
    ],
)
def test_options_that_do_not_fit(files, options, message):
    with pytest.raises(ValueError, match=message):
        fitted("serial", 1, files, **options)


def test_more_threads_than_files_in_memory_are_an_error(files):
    dataset = FileDataset(files.files, threads=10)
    with pytest.raises(ValueError, match=r"threads=10, file_buffer=10: .*give a file_buffer of at least 11"):
        fitted("serial", 1, dataset)
    fitted("serial", 1, FileDataset(files.files, threads=10, file_buffer=11))
    with pytest.raises(ValueError, match="file_buffer=0"):
        FileDataset(files.files, file_buffer=0)
    with pytest.raises(ValueError, match="pool_size=0"):
        PartialShuffle(0)
    with pytest.raises(ValueError, match="pools=3: choose 1 or 2"):
        PartialShuffle(pools=3)


def test_y_is_in_the_files(files, blocks):
    with pytest.raises(TypeError, match="leave y out"):
        fitted("serial", 1, (files, blocks[1]))
    with pytest.raises(TypeError, match="give it as x, without y"):
        fitted("serial", 1, (blocks[0], files))


def test_unknown_types_and_names_of_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones((3, 2), ">f4"), y=np.arange(3), z=np.ones((3, 6), np.float32))
    with pytest.raises(BadFileError, match=r"a\.npz holds >f4 \(2,\) in 'x', which torch cannot hold"):
        fitted("serial", 1, FileDataset(tmp_path / "a.npz"))
    fitted("serial", 1, FileDataset(tmp_path / "a.npz", x="z"))  # the others are not read
    with pytest.raises(ValueError, match=r"no array 'images' for x.*FileDataset\(\.\.\., x=\.\.\., y=\.\.\.\)"):
        fitted("serial", 1, FileDataset(tmp_path / "a.npz", x="images"))


def test_more_workers_than_files_or_samples_are_warned_of(files):
    with pytest.warns(UserWarning, match="6 workers share 4 files, so that 2 have nothing"):
        fitted("serial", 6, files)
    with pytest.warns(UserWarning, match="60 workers share 57 samples, so that 3 have nothing"):
        fitted("serial", 60, files, mlp, **POOLS)


def test_a_reader_that_cannot_travel_is_an_error_before_training(files):
    lock = threading.Lock()

    def reader(filename, get_data=False):
        with lock:
            return 3

    with pytest.raises(TypeError, match="reader"):
        fitted("serial", 1, FileDataset(files.files, reader))
