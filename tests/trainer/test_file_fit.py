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
from tests.helpers.small_fits import STILL, trainer_of
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


WAYS = [
    *({"shuffle": shuffle, **mode} for shuffle in ("blocks", None) for mode in MODES),
    {"shuffle": "blocks", "shuffle_block_data": False},
    STILL,
    {"buffer": BufferSpec("FIFO", 16)},
    {"buffer": BufferSpec("FIRO", 24, threshold=9)},
    {"batch_size": None, "num_batches_per_worker": 3},
    *({"shuffle": PartialShuffle(11, pools=pools), **mode} for pools in (1, 2) for mode in MODES),
]


@pytest.fixture(scope="module")
def in_memory(blocks):
    """Return what the serial engine makes of blocks in memory, by the number of a way."""
    return functools.cache(lambda number: fitted(SerialEngine(), 3, blocks, **WAYS[number]))


@pytest.mark.parametrize("number", range(len(WAYS)), ids=map(str, WAYS))
def test_files_are_blocks_in_memory(engine, files, in_memory, number, tmp_path):
    """Whatever is read ahead and kept."""
    cached = [{"threads": 3, "cache": cache} for cache in ("memory", tmp_path)]
    reading = [{"file_buffer": 1}, {"file_buffer": 2}, *cached][number % 4]
    ours, history = fitted(engine, 3, FileDataset(files.files, **reading), **WAYS[number])
    theirs, expected = in_memory(number)
    assert_same_bits(ours, theirs)
    assert [record["loss"] for record in history] == [record["loss"] for record in expected]
    assert sum(worker["samples"] for record in history for worker in record["workers"]) == 2 * sum(SIZES)
    later = [worker["files"] for record in history[1:] for worker in record["workers"] if record["epoch"] > 1]
    assert reading not in cached or all(read["cached"] == read["files"] for read in later)


def test_relative_paths_are_found_by_all_processes(engine, files, blocks, monkeypatch):
    monkeypatch.chdir(Path(files.files[0]).parent)
    ours, _ = fitted(engine, 3, FileDataset("*.npz"))
    assert_same_bits(ours, fitted(SerialEngine(), 3, blocks)[0])


def test_evaluate_predict_and_validation_take_files(engine, files, samples, tmp_path):
    x, y = samples
    trainer = trainer_of(engine, 2)
    cached = FileDataset(files.files, threads=4, cache=tmp_path)
    trainer.fit(cached, num_epochs=1, batch_size=5, validation_data=files, **POOLS)
    measured, outputs = trainer.evaluate(files), trainer.predict(x)
    assert trainer.evaluate(cached) == measured
    assert "57 samples" in str(trainer.configuration["fit"]["data"])
    rounding = loss_error(np.float32, len(x))
    assert measured["loss"] == pytest.approx(trainer.evaluate(x, y)["loss"], abs=rounding)
    assert trainer.history[-1]["val_loss"] == pytest.approx(measured["loss"], abs=rounding)
    for dataset in (files, cached):
        rounding = sum_error(np.float32, WIDTHS, 10)
        np.testing.assert_allclose(trainer.predict(dataset), outputs, rtol=0, atol=rounding)


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


def test_the_fit_reads_any_reader_the_user_has(engine, samples):
    parts = dict(zip("abcd", zip(*map(rows, samples), strict=True), strict=True))

    def reader(filename, get_data=False):
        x, y = parts[filename[-1]]
        return ({"images": x, "labels": y}, len(x)) if get_data else len(x)

    dataset = FileDataset([f"store://{name}" for name in parts], reader, x="images", y="labels")
    ours, _ = fitted(engine, 2, dataset, **POOLS)
    assert all(np.isfinite(array).all() for array in ours.values())


# -- wrong input -------------------------------------------------------------------------------------------


def locked_reader(lock=threading.Lock()):  # noqa: B008
    return lambda filename, get_data=False: 3 if lock else 4


REFUSED = [
    ({"shuffle": "total"}, ValueError, r"take PartialShuffle\(\)"),
    (
        {"shuffle": PartialShuffle(), "shuffle_block_data": False},
        ValueError,
        "leave buffer= and shuffle_block_data= out",
    ),
    (
        {"shuffle": PartialShuffle(), "buffer": BufferSpec("FIFO", 9)},
        ValueError,
        "leave buffer= and shuffle_block_data= out",
    ),
    ({"threads": 10}, ValueError, "threads=10, file_buffer=10: .*give a file_buffer of at least 11"),
    ({"file_buffer": 0}, ValueError, "file_buffer=0"),
    ({"y": "z"}, BadFileError, r"a\.npz holds >f4 \(2,\) in 'x', which torch cannot hold"),
    ({"x": "images"}, ValueError, r"no array 'images' for x.*FileDataset\(\.\.\., x=\.\.\., y=\.\.\.\)"),
    ({"reader": locked_reader()}, TypeError, "reader"),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED)
def test_options_that_do_not_fit(files, tmp_path, options, error, message):
    np.savez(tmp_path / "a.npz", x=np.ones((3, 2), ">f4"), y=np.arange(3), z=np.ones((3, 6), np.float32))
    of_files = {key: options[key] for key in options if key not in ("shuffle", "shuffle_block_data", "buffer")}
    own = tmp_path / "a.npz" if options.keys() & {"x", "y"} else files.files
    with pytest.raises(error, match=message):
        fitted("serial", 1, FileDataset(own, **of_files), **{k: options[k] for k in options if k not in of_files})
    fitted("serial", 1, FileDataset(files.files, threads=10, file_buffer=11))
    fitted("serial", 1, FileDataset(tmp_path / "a.npz", x="z"))  # the others are not read


def test_targets_are_in_the_files(files, blocks):
    with pytest.raises(TypeError, match="leave y out"):
        fitted("serial", 1, (files, blocks[1]))
    with pytest.raises(TypeError, match="give it as x, without y"):
        fitted("serial", 1, (blocks[0], files))


def test_more_workers_than_files_or_samples_are_warned_of(files):
    with pytest.warns(UserWarning, match="6 workers share 4 files, so that some have nothing"):
        fitted("serial", 6, files)
    with pytest.warns(UserWarning, match="60 workers share 57 samples, so that some have nothing"):
        fitted("serial", 60, files, mlp, **POOLS)
