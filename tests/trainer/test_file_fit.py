"""Fits that read files: the laws of the core hold, and what does not fit is an error."""

import functools
import threading
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
from compss_train.data import writing
from tests.helpers.file_fits import BOUNDS, POOLS, SIZES, fitted, rows, write_files
from tests.helpers.models import MODES, assert_same_bits, awkward_net, classification, mlp
from tests.helpers.plain_loop import OPTIMIZERS, plain_steps
from tests.helpers.small_fits import STILL, combined, trainer_of
from tests.helpers.tolerances import loss_error, output_error


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
    *({"shuffle": "blocks", **mode} for mode in MODES),
    {"shuffle": None, **MODES[3]},
    {"shuffle": "blocks", "shuffle_block_data": False},
    STILL,
    {"buffer": BufferSpec("FIFO", 16)},
    {"buffer": BufferSpec("FIRO", 24, threshold=9)},
    {"batch_size": None, "num_batches_per_worker": 3},
    {"shuffle": PartialShuffle(11), **MODES[3]},
    *({"shuffle": PartialShuffle(11, pools=2), **mode} for mode in MODES[::3]),
]


@pytest.fixture(scope="module")
def in_memory(blocks):
    """Return what the serial engine makes of blocks in memory, by the number of a way."""
    return functools.cache(lambda number: fitted(SerialEngine(), 3, blocks, **WAYS[number]))


@pytest.mark.parametrize("number", range(len(WAYS)), ids=lambda number: str(WAYS[number]))
def test_files_are_blocks_in_memory(engine, files, in_memory, number, tmp_path):
    """Whatever is read ahead and kept."""
    cached = [{"threads": 3, "cache": cache} for cache in ("memory", tmp_path)]
    reading = [{"file_buffer": 1}, {"file_buffer": 2}, *cached][number % 4]
    ours, history = fitted(engine, 3, FileDataset(files.files, **reading), **WAYS[number])
    theirs, expected = in_memory(number)
    assert_same_bits(ours, theirs)
    assert [record["loss"] for record in history] == [record["loss"] for record in expected]
    assert sum(worker["samples"] for record in history for worker in record["workers"]) == 2 * sum(
        SIZES
    )
    later = [
        worker["files"]
        for record in history[1:]
        for worker in record["workers"]
        if record["epoch"] > 1
    ]
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
    measured = trainer.evaluate(files)
    outputs = trainer.predict(x)
    assert trainer.evaluate(cached) == measured
    assert "57 samples" in str(trainer.configuration["fit"]["data"])
    rounding = loss_error(np.float32, len(x))
    assert measured["loss"] == pytest.approx(trainer.evaluate(x, y)["loss"], abs=rounding)
    assert trainer.history[-1]["val_loss"] == pytest.approx(measured["loss"], abs=rounding)
    rounding = output_error(trainer.model(), x)
    for dataset in (files, cached):
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


def locked_reader(lock=threading.Lock()):  # noqa: B008
    return lambda filename, get_data=False: 3 if lock else 4


REFUSED = [
    ({"shuffle": "total"}, ValueError, "PartialShuffle()"),
    ({"shuffle": PartialShuffle(), "shuffle_block_data": False}, ValueError, "shuffle_block_data="),
    ({"shuffle": PartialShuffle(), "buffer": BufferSpec("FIFO", 9)}, ValueError, "buffer="),
    ({"buffer": BufferSpec("Reservoir", 9, max_repeats=2)}, ValueError, "max_repeats=2"),
    (
        {"buffer": BufferSpec("SimPairedReservoir", 9, None, 3, 3)},
        ValueError,
        ("a SimPairedReservoir"),
    ),
    ({"threads": 10}, ValueError, "threads=10, file_buffer=10"),
    ({"file_buffer": 0}, ValueError, "file_buffer=0"),
    ({"y": "z"}, BadFileError, ">f4 (2,) in 'x'"),
    ({"x": "images"}, ValueError, "no array 'images' for x"),
    ({"reader": locked_reader()}, TypeError, "reader"),
]


@pytest.mark.parametrize(("options", "error", "name"), REFUSED)
def test_options_that_do_not_fit(files, tmp_path, options, error, name, raises):
    np.savez(
        tmp_path / "a.npz", x=np.ones((3, 2), ">f4"), y=np.arange(3), z=np.ones((3, 6), np.float32)
    )
    of_files = {
        key: options[key]
        for key in options
        if key not in ("shuffle", "shuffle_block_data", "buffer")
    }
    own = tmp_path / "a.npz" if options.keys() & {"x", "y"} else files.files
    with raises(error, name):
        fitted(
            "serial",
            1,
            FileDataset(own, **of_files),
            **{k: options[k] for k in options if k not in of_files},
        )
    fitted("serial", 1, FileDataset(files.files, threads=10, file_buffer=11))
    fitted("serial", 1, FileDataset(tmp_path / "a.npz", x="z"))  # the others are not read


def test_targets_are_in_the_files(files, blocks):
    with pytest.raises(TypeError, match="leave y out"):
        fitted("serial", 1, (files, blocks[1]))
    with pytest.raises(TypeError, match="give it as x, without y"):
        fitted("serial", 1, (blocks[0], files))


def spoil(file):
    """Change a byte of the data, which no header shows."""
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 255
    file.write_bytes(bytes(content))


FIRO = {"buffer": BufferSpec("FIRO", 24, threshold=9)}


@pytest.mark.parametrize("options", [POOLS, {"shuffle": "blocks"}, FIRO], ids=str)
@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
def test_a_corrupt_file_is_an_error_or_left_out(engine, own_files, options, merge):
    strict, lenient = (
        FileDataset(f"{own_files}/*.npz", on_bad_file=how) for how in ("raise", "skip")
    )
    spoil(own_files / "2.npz")
    options = combined(options, merge=merge)
    with pytest.warns(UserWarning, match=r"skipped .*2\.npz is corrupt"):
        # Batches may have one sample left.
        ours, history = fitted(engine, 2, lenient, mlp, **options)
    with pytest.raises(BadFileError, match=r"2\.npz is corrupt"):
        fitted(engine, 2, strict, **options)
    for record in history:
        assert sum(worker["samples"] for worker in record["workers"]) == sum(SIZES) - SIZES[2]
        assert record["skipped"] == [str(own_files / "2.npz")]
    assert all(np.isfinite(array).all() for array in ours.values())


AS_THEY_ARE = {"shuffle": None, "shuffle_block_data": False, "num_epochs": 1}
BY_BLOCKS = {"merge": Merge(every=1, unit="blocks")}


@pytest.mark.filterwarnings("ignore:skipped")
@pytest.mark.parametrize(
    ("workers", "merge", "bad"),
    [
        (1, "synchronous", {3}),
        (1, "synchronous", {0, 1, 2, 4, 5, 6, 7}),
        (1, "commutative", {3}),
        (2, "synchronous", {2, 3}),
        (2, Merge(outer_optimizer={"optimizer": "sgd", "lr": 0.7, "momentum": 0.9}), {2, 3}),
        (2, "commutative", {2, 3}),
    ],
    ids=str,
)
def test_a_round_of_only_bad_files_changes_nothing(engine, tmp_path, workers, merge, bad):
    """Files have one size, so that where some are missing others come in their place."""
    x, y = classification(samples=80)
    files = [Path(name) for name in writing.write_files(tmp_path, {"x": x, "y": y}, rows=10)]
    dataset = FileDataset(files, on_bad_file="skip")
    good = FileDataset([file for number, file in enumerate(files) if number not in bad])
    for number in bad:
        spoil(files[number])
    options = combined(AS_THEY_ARE, merge=merge) | {"num_epochs": 2}
    options = combined(options, merge=Merge(unit="blocks"))
    ours, history = fitted(engine, workers, dataset, **options)
    theirs, expected = fitted(SerialEngine(), workers, good, **options)
    if merge != "commutative" or workers == 1:  # an outer optimizer takes no step without samples
        assert_same_bits(ours, theirs)
    assert all(np.isfinite(array).all() for array in ours.values())
    assert sorted(record["samples"] for record in history if record["samples"]) == [
        r["samples"] for r in expected
    ]
    assert len(history) == 2 * 8 // workers
    assert all(np.isnan(record["loss"]) for record in history if not record["samples"])
    assert set(history[-1]["skipped"]) == {str(files[number]) for number in bad}


@pytest.mark.parametrize(
    "options", [POOLS, {"shuffle": "blocks"}, BY_BLOCKS, {"merge": Merge(every=0)}], ids=str
)
@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
def test_an_epoch_without_a_readable_file_is_an_error(own_files, merge, options):
    dataset = FileDataset(f"{own_files}/*.npz", on_bad_file="skip")
    for file in own_files.iterdir():
        spoil(file)
    trainer = trainer_of(workers=2)
    before = trainer.get_parameters()
    with (
        pytest.warns(UserWarning, match="skipped"),
        pytest.raises(
            BadFileError, match=r"^.*\d\.npz is corrupt.*; nor can any other file be read$"
        ),
    ):
        trainer.fit(dataset, num_epochs=3, batch_size=5, **combined(options, merge=merge))
    assert_same_bits(trainer.get_parameters(), before)
    assert sum(record["samples"] for record in trainer.history) == 0
    with (
        pytest.warns(UserWarning, match="skipped"),
        pytest.raises(BadFileError, match=r"\d\.npz is corrupt"),
    ):
        trainer.evaluate(dataset)


RESERVOIR = BufferSpec("Reservoir", 16, threshold=4)


@pytest.mark.filterwarnings("ignore:skipped")
@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
@pytest.mark.parametrize("bad", [[], [2], [0, 3]], ids=str)
def test_records_count_given_samples_however_often_they_were_trained_on(own_files, merge, bad):
    dataset = FileDataset(f"{own_files}/*.npz", on_bad_file="skip")
    for number in bad:
        spoil(own_files / f"{number}.npz")
    for buffer in (None, RESERVOIR):
        _, history = fitted("serial", 2, dataset, mlp, merge=merge, buffer=buffer)
        trained = [sum(worker["samples"] for worker in record["workers"]) for record in history]
        given = sum(SIZES) - sum(SIZES[number] for number in bad)
        assert [record["samples"] for record in history] == [given] * 2
        assert (trained == [given] * 2) == (buffer is None)


def test_evaluate_tells_of_skipped_files_and_predict_raises(own_files, samples):
    dataset = FileDataset(f"{own_files}/*.npz", on_bad_file="skip")
    spoil(own_files / "2.npz")
    trainer = trainer_of(workers=2)
    kept = np.r_[0 : BOUNDS[2], BOUNDS[3] : BOUNDS[4]]
    with pytest.warns(UserWarning, match=r"skipped .*2\.npz"):
        loss = trainer.evaluate(dataset)["loss"]
    expected = trainer.evaluate(*(array[kept] for array in samples))["loss"]
    assert loss == pytest.approx(expected, abs=loss_error(np.float32, len(kept)))
    with pytest.raises(BadFileError, match=r"2\.npz is corrupt"):
        trainer.predict(dataset)
