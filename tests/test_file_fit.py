"""Fits that read files: the laws of the core hold, and bad files are errors that name them."""

import functools
import itertools
import threading

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import (
    BadFileError,
    BlockedTensor,
    BufferSpec,
    DistributedTrainer,
    FileDataset,
    PartialShuffleSampler,
    SerialEngine,
)
from compss_train import parameters as params
from compss_train.engines.this_machine import intra_op_threads
from tests.models import ADAM, MODES, assert_close, assert_same_bits, awkward_net, classification, mlp, state_arrays

SIZES = (13, 20, 7, 17)
BOUNDS = (0, *itertools.accumulate(SIZES))
POOLS = {"shuffle": "partial", "shuffle_buffer": 11, "pools": 2}


def rows(array):
    return [array[start:stop] for start, stop in itertools.pairwise(BOUNDS)]


@pytest.fixture(scope="module")
def samples():
    return classification(samples=sum(SIZES))


@pytest.fixture(scope="module")
def files(tmp_path_factory, samples):
    folder = tmp_path_factory.mktemp("files")
    for number, (x, y) in enumerate(zip(*map(rows, samples), strict=True)):
        np.savez(folder / f"{number}.npz", x=x, y=y)
    return FileDataset(f"{folder}/*.npz")


@pytest.fixture
def own_files(tmp_path, samples):
    """Files that a test may spoil."""
    for number, (x, y) in enumerate(zip(*map(rows, samples), strict=True)):
        np.savez(tmp_path / f"{number}.npz", x=x, y=y)
    return tmp_path


@pytest.fixture(scope="module")
def blocks(samples):
    return tuple(BlockedTensor([[block] for block in rows(array)]) for array in samples)


def fitted(engine, workers, data, net=awkward_net, **options):
    trainer = DistributedTrainer(workers, engine=engine, seed=0, threads=1)
    trainer.build(net(), ADAM, "cross_entropy", "accuracy")
    data = (data,) if isinstance(data, FileDataset) else data
    return trainer.fit(*data, **{"num_epochs": 2, "batch_size": 5, **options}), trainer.history


@pytest.mark.parametrize("shuffle", ["blocks", None])
def test_files_are_blocks(engine, files, blocks, shuffle):
    for number, mode in enumerate(MODES):
        rows_too = (number % 2 == 0) == (shuffle is None)  # each way in every mode, with the other shuffle
        options = {"shuffle": shuffle, "shuffle_block_data": rows_too, **mode}
        ours, history = fitted(engine, 3, files, **options)
        theirs, expected = fitted(SerialEngine(), 3, blocks, **options)
        assert_same_bits(ours, theirs)
        assert [record["loss"] for record in history] == [record["loss"] for record in expected]


@pytest.mark.parametrize("spec", [BufferSpec("FIFO", 16), BufferSpec("FIRO", 24, threshold=9)])
def test_files_are_blocks_through_a_buffer_too(engine, files, blocks, spec):
    assert_same_bits(fitted(engine, 2, files, buffer=spec)[0], fitted(SerialEngine(), 2, blocks, buffer=spec)[0])


@pytest.fixture(scope="module")
def in_memory(blocks):
    """Return what the serial engine makes of blocks in memory, by pools and the number of a mode."""
    return functools.cache(
        lambda pools, mode: fitted(SerialEngine(), 3, blocks, **{**POOLS, "pools": pools, **MODES[mode]})[0]
    )


@pytest.mark.parametrize("pools", [1, 2])
@pytest.mark.parametrize("file_buffer", [1, 2, 10])
def test_a_partial_shuffle_gives_the_same_bits_on_every_engine_from_files_and_from_memory(
    engine, files, in_memory, pools, file_buffer
):
    for number in range(0, len(MODES), 1 if file_buffer == 2 else 3):
        options = {**POOLS, "pools": pools, **MODES[number]}
        ours, history = fitted(engine, 3, files, file_buffer=file_buffer, **options)
        assert_same_bits(ours, in_memory(pools, number))
        assert sum(worker["samples"] for record in history for worker in record["workers"]) == 2 * sum(SIZES)


@pytest.mark.parametrize("pools", [1, 2])
def test_one_worker_is_the_plain_loop_over_the_sampler(engine, own_files, pools):
    (own_files / "0.npz").unlink()  # 44 samples make batches of four
    dataset = FileDataset(f"{own_files}/*.npz")
    ours, _ = fitted(engine, 1, dataset, batch_size=4, **{**POOLS, "pools": pools})
    with intra_op_threads(1):
        net = awkward_net()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        sampler = PartialShuffleSampler(dataset, shuffle_buffer=11, batch_size=4, pools=pools)
        torch.manual_seed(0)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for batch in sampler:
                optimizer.zero_grad()
                nn.functional.cross_entropy(
                    net(torch.from_numpy(batch["x"])), torch.from_numpy(batch["y"])
                ).backward()
                optimizer.step()
    assert_same_bits(ours, state_arrays(net))


def test_every_worker_reads_its_share_and_each_file_once(engine, files):
    _, history = fitted(engine, 2, files, **POOLS)
    for record in history:
        assert sorted(worker["samples"] for worker in record["workers"]) == [28, 29]
        # One file is cut between the two.
        assert sum(worker["files"]["files"] for worker in record["workers"]) <= len(SIZES) + 1
        assert all(worker["files"]["most_held"] <= 10 for worker in record["workers"])


def test_commutative_workers_read_files(engine, files):
    one_merge = {"merge": "commutative", "num_epochs": 1, **POOLS}
    assert_close(
        fitted(engine, 3, files, **one_merge)[0], fitted(SerialEngine(), 3, files, num_epochs=1, **POOLS)[0]
    )


def test_evaluate_predict_and_validation_take_files(engine, files, samples):
    x, y = samples
    trainer = DistributedTrainer(2, engine=engine, seed=0, threads=1)
    trainer.build(awkward_net(), ADAM, "cross_entropy", "accuracy")
    trainer.fit(files, num_epochs=1, batch_size=5, validation_data=files, **POOLS)
    measured = trainer.evaluate(files)
    assert measured["loss"] == pytest.approx(trainer.evaluate(x, y)["loss"], rel=1e-6)
    assert trainer.history[-1]["val_loss"] == pytest.approx(measured["loss"], rel=1e-6)
    np.testing.assert_allclose(trainer.predict(files), trainer.predict(x), rtol=0, atol=1e-6)


def test_the_fit_reads_any_reader_the_user_has(engine, samples):
    parts = dict(zip("abcd", zip(*map(rows, samples), strict=True), strict=True))

    def reader(filename, get_data=False):
        x, y = parts[filename[-1]]
        return ({"images": x, "labels": y}, len(x)) if get_data else len(x)

    dataset = FileDataset([f"store://{name}" for name in parts], reader, x="images", y="labels")
    ours, _ = fitted(engine, 2, dataset, **POOLS)
    assert all(np.isfinite(array).all() for array in ours.values())


def test_batches_are_as_many_as_asked_for(engine, files):
    _, history = fitted(engine, 1, files, batch_size=None, num_batches_per_worker=3, num_epochs=1, **POOLS)
    assert history[0]["samples"] == sum(SIZES)


# -- bad files ---------------------------------------------------------------------------------------------


def spoil(file):
    """Change a byte of the data, which no header shows."""
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 255
    file.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("options", "merge"),
    [
        (POOLS, "synchronous"),
        (POOLS, "commutative"),
        ({"shuffle": "blocks"}, "synchronous"),
        ({"buffer": BufferSpec("FIRO", 24, threshold=9)}, "commutative"),
    ],
)
def test_a_corrupt_file_is_an_error_that_names_it(engine, own_files, options, merge):
    dataset = FileDataset(f"{own_files}/*.npz")
    spoil(own_files / "2.npz")
    with pytest.raises(BadFileError, match=r"2\.npz is corrupt"):
        fitted(engine, 2, dataset, merge=merge, **options)


@pytest.mark.parametrize("options", [POOLS, {"shuffle": "blocks"}, {"buffer": BufferSpec("FIRO", 24, threshold=9)}])
@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
def test_or_it_is_left_out_and_told(engine, own_files, options, merge):
    dataset = FileDataset(f"{own_files}/*.npz", on_bad_file="skip")
    spoil(own_files / "2.npz")
    with pytest.warns(UserWarning, match=r"skipped .*2\.npz is corrupt"):
        ours, history = fitted(engine, 2, dataset, mlp, merge=merge, **options)  # batches may have one sample left
    for record in history:
        assert sum(worker["samples"] for worker in record["workers"]) == sum(SIZES) - SIZES[2]
        assert record["skipped"] == [str(own_files / "2.npz")]
    assert all(np.isfinite(array).all() for array in ours.values())


def test_workers_count_by_what_they_have_trained(own_files):
    """A worker whose only file is bad has no vote."""
    for name in ("2.npz", "3.npz"):
        (own_files / name).unlink()
    dataset = FileDataset(f"{own_files}/*.npz", on_bad_file="skip")
    options = {"shuffle": None, "shuffle_block_data": False, "num_epochs": 1}
    spoil(own_files / "1.npz")
    with pytest.warns(UserWarning, match="skipped"):
        ours, history = fitted("serial", 2, dataset, **options)
    alone, _ = fitted("serial", 1, FileDataset([own_files / "0.npz"]), **options)
    assert_same_bits(ours, alone)
    assert [worker["samples"] for worker in history[0]["workers"]] == [SIZES[0], 0]


def write_alike(folder, files=8, rows_of_each=10):
    """Write files of one size, so that where some are missing others come in their place."""
    folder.mkdir(exist_ok=True)
    x, y = classification(samples=files * rows_of_each)
    for number in range(files):
        chosen = slice(number * rows_of_each, (number + 1) * rows_of_each)
        np.savez(folder / f"{number}.npz", x=x[chosen], y=y[chosen])
    return sorted(folder.glob("*.npz"))


AS_THEY_ARE = {"shuffle": None, "shuffle_block_data": False, "num_epochs": 1}
BY_BLOCKS = {"merge_unit": "blocks", "merge_every": 1}


@pytest.mark.filterwarnings("ignore:skipped")
@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize(
    ("workers", "merge", "bad"),
    [
        (1, "synchronous", {3}),
        (1, "synchronous", {0}),
        (1, "synchronous", {7}),
        (1, "synchronous", {0, 1, 2, 4, 5, 6, 7}),
        (1, "commutative", {3}),
        (2, "synchronous", {2, 3}),
        (4, "synchronous", {0, 1, 2, 3}),
    ],
    ids=str,
)
def test_a_round_whose_files_are_all_bad_is_as_if_it_were_not_there(engine, tmp_path, workers, merge, bad, epochs):
    files = write_alike(tmp_path)
    dataset = FileDataset(files, on_bad_file="skip")
    good = FileDataset([file for number, file in enumerate(files) if number not in bad])
    for number in bad:
        spoil(files[number])
    options = {**AS_THEY_ARE, **BY_BLOCKS, "merge": merge, "num_epochs": epochs}
    ours, history = fitted(engine, workers, dataset, **options)
    theirs, expected = fitted(SerialEngine(), workers, good, **options)
    assert_same_bits(ours, theirs)
    assert [record["samples"] for record in history if record["samples"]] == [r["samples"] for r in expected]
    assert len(history) == epochs * 8 // workers
    assert all(np.isnan(record["loss"]) for record in history if not record["samples"])
    assert set(history[-1]["skipped"]) == {str(files[number]) for number in bad}


@pytest.mark.filterwarnings("ignore:skipped")
def test_commutative_workers_go_on_after_a_round_whose_files_are_all_bad(engine, tmp_path):
    files = write_alike(tmp_path)
    dataset = FileDataset(files, on_bad_file="skip")
    for number in (2, 3):
        spoil(files[number])
    ours, history = fitted(engine, 2, dataset, **AS_THEY_ARE, **BY_BLOCKS, merge="commutative")
    assert sorted(record["samples"] for record in history) == [0, 20, 20, 20]
    assert all(np.isfinite(array).all() for array in ours.values())


@pytest.mark.parametrize("options", [POOLS, {"shuffle": "blocks"}, BY_BLOCKS, {"merge_every": 0}], ids=str)
@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
def test_an_epoch_without_a_file_that_can_be_read_is_an_error(own_files, merge, options):
    dataset = FileDataset(f"{own_files}/*.npz", on_bad_file="skip")
    for file in own_files.iterdir():
        spoil(file)
    trainer = DistributedTrainer(2, engine="serial", seed=0, threads=1)
    trainer.build(awkward_net(), ADAM, "cross_entropy")
    before = trainer.get_parameters()
    with (
        pytest.warns(UserWarning, match="skipped"),
        pytest.raises(BadFileError, match=r"^.*\d\.npz is corrupt.*; nor can any other file be read$"),
    ):
        trainer.fit(dataset, num_epochs=3, batch_size=5, merge=merge, **options)
    assert_same_bits(trainer.get_parameters(), before)
    assert sum(record["samples"] for record in trainer.history) == 0


RESERVOIR = BufferSpec("Reservoir", 16, threshold=4)


@pytest.mark.filterwarnings("ignore:skipped")
@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
@pytest.mark.parametrize("bad", [[], [2], [0, 3]], ids=str)
def test_a_record_counts_the_samples_that_were_given_however_often_they_were_trained_on(own_files, merge, bad):
    dataset = FileDataset(f"{own_files}/*.npz", on_bad_file="skip")
    for number in bad:
        spoil(own_files / f"{number}.npz")
    for buffer in (None, RESERVOIR):
        _, history = fitted("serial", 2, dataset, mlp, merge=merge, buffer=buffer)
        trained = [sum(worker["samples"] for worker in record["workers"]) for record in history]
        given = sum(SIZES) - sum(SIZES[number] for number in bad)
        assert [record["samples"] for record in history] == [given] * 2
        assert (trained == [given] * 2) == (buffer is None)


@pytest.mark.filterwarnings("ignore:skipped")
@pytest.mark.parametrize("buffer", [None, RESERVOIR], ids=["plain", "reservoir"])
def test_versions_weigh_by_the_samples_that_were_given(own_files, monkeypatch, buffer):
    dataset, weights, average = FileDataset(f"{own_files}/*.npz", on_bad_file="skip"), [], params.average
    spoil(own_files / "2.npz")

    def watched(versions, counts):
        weights.append([params._number(count) for count in counts])
        return average(versions, counts)

    monkeypatch.setattr(params, "average", watched)
    fitted("serial", 2, dataset, mlp, **AS_THEY_ARE, buffer=buffer)
    assert weights == [[SIZES[0], SIZES[1] + SIZES[3]]]


@pytest.mark.filterwarnings("ignore:skipped")
@pytest.mark.parametrize("bad", [{0}, {4}, {8}, {0, 8}, set(range(8)), set(range(1, 9))], ids=str)
def test_in_a_tree_of_averages_workers_without_samples_have_no_vote(engine, tmp_path, bad):
    files = write_alike(tmp_path, 9)
    dataset = FileDataset(files, on_bad_file="skip")
    alone = [fitted("serial", 1, FileDataset([file]), mlp, **AS_THEY_ARE)[0] for file in files]
    for number in bad:
        spoil(files[number])
    ours, history = fitted(engine, 9, dataset, mlp, **AS_THEY_ARE)
    good = [version for number, version in enumerate(alone) if number not in bad]
    assert_close(ours, params.average(good, [10] * len(good)))
    assert all(np.isfinite(array).all() for array in ours.values())
    assert history[0]["samples"] == 10 * len(good)


def test_evaluating_files_of_which_none_can_be_read_is_an_error(engine, own_files):
    dataset = FileDataset(f"{own_files}/*.npz", on_bad_file="skip")
    for file in own_files.iterdir():
        spoil(file)
    trainer = DistributedTrainer(2, engine=engine, seed=0, threads=1)
    trainer.build(awkward_net(), ADAM, "cross_entropy")
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(BadFileError, match=r"\d\.npz is corrupt"):
        trainer.evaluate(dataset)


def test_files_left_out_are_told_by_evaluate_and_an_error_for_predict(own_files, samples):
    dataset = FileDataset(f"{own_files}/*.npz", on_bad_file="skip")
    spoil(own_files / "2.npz")
    trainer = DistributedTrainer(2, engine="serial", seed=0, threads=1)
    trainer.build(awkward_net(), ADAM, "cross_entropy")
    kept = np.r_[0 : BOUNDS[2], BOUNDS[3] : BOUNDS[4]]
    with pytest.warns(UserWarning, match=r"skipped .*2\.npz"):
        loss = trainer.evaluate(dataset)["loss"]
    assert loss == pytest.approx(trainer.evaluate(*(array[kept] for array in samples))["loss"], rel=1e-6)
    with pytest.raises(BadFileError, match=r"2\.npz is corrupt"):
        trainer.predict(dataset)


@pytest.mark.parametrize("start", [{"shuffle": "blocks"}, POOLS])
def test_no_thread_is_left_after_a_fit_or_an_error(own_files, start):
    dataset = FileDataset(f"{own_files}/*.npz")
    fitted("serial", 2, dataset, **start)
    spoil(own_files / "2.npz")
    with pytest.raises(BadFileError):
        fitted("serial", 2, dataset, **start)
    readers = [thread for thread in threading.enumerate() if thread.name.startswith("read-ahead")]
    for thread in readers:
        thread.join(10)
    assert not any(thread.is_alive() for thread in readers)


# -- wrong input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": "total"}, "take shuffle='partial'"),
        ({"shuffle": "blocks", "pools": 2}, "pools=2 belong to shuffle='partial'"),
        ({"shuffle_buffer": 9}, "shuffle_buffer=9 and pools=1 belong to shuffle='partial'"),
        ({"shuffle": "partial", "shuffle_buffer": 0}, "shuffle_buffer=0"),
        ({"shuffle": "partial", "pools": 3}, "pools=3: choose 1 or 2"),
        ({"shuffle": "partial", "shuffle_block_data": False}, "leave buffer= and shuffle_block_data= out"),
        ({"shuffle": "partial", "buffer": BufferSpec("FIFO", 9)}, "leave buffer= and shuffle_block_data= out"),
        ({"file_buffer": 0}, "file_buffer=0"),
    ],
)
def test_options_that_do_not_fit(files, options, message):
    with pytest.raises(ValueError, match=message):
        fitted("serial", 1, files, **options)


def test_y_is_in_the_files(files, blocks):
    with pytest.raises(TypeError, match="leave y out"):
        fitted("serial", 1, (files, blocks[1]))
    with pytest.raises(TypeError, match="give it as x, alone"):
        fitted("serial", 1, (blocks[0], files))


def test_arrays_that_torch_cannot_hold_and_names_that_are_not_there(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones((3, 2), ">f4"), y=np.arange(3), z=np.ones((3, 6), np.float32))
    with pytest.raises(BadFileError, match=r"a\.npz holds >f4 \(2,\) in 'x', which torch cannot hold"):
        fitted("serial", 1, FileDataset(tmp_path / "a.npz"))
    fitted("serial", 1, FileDataset(tmp_path / "a.npz", x="z"))  # the others are not read
    with pytest.raises(ValueError, match=r"no array 'images' for x.*FileDataset\(\.\.\., x=\.\.\., y=\.\.\.\)"):
        fitted("serial", 1, FileDataset(tmp_path / "a.npz", x="images"))


def test_more_workers_than_there_is_to_train_on_are_warned_of(files):
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
