"""Fits that read files of which some are bad: errors that name them, or left out and told."""

import threading

import numpy as np
import pytest

from compss_train import BadFileError, BufferSpec, FileDataset, Merge, SerialEngine
from tests.helpers.file_fits import BOUNDS, POOLS, SIZES, fitted, write_files
from tests.helpers.means import average
from tests.helpers.models import assert_close, assert_same_bits, classification, mlp
from tests.helpers.small_fits import combined, trainer_of
from tests.helpers.tolerances import largest, loss_error, sum_error


@pytest.fixture(scope="module")
def samples():
    return classification(samples=sum(SIZES))


@pytest.fixture
def own_files(tmp_path, samples):
    """Files that a test may spoil."""
    write_files(tmp_path, samples)
    return tmp_path


def spoil(file):
    """Change a byte of the data, which no header shows."""
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 255
    file.write_bytes(bytes(content))


FIRO = {"buffer": BufferSpec("FIRO", 24, threshold=9)}


@pytest.mark.parametrize("options", [POOLS, {"shuffle": "blocks"}, FIRO], ids=str)
@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
def test_a_corrupt_file_is_an_error_or_left_out_and_told(engine, own_files, options, merge):
    strict, lenient = (FileDataset(f"{own_files}/*.npz", on_bad_file=how) for how in ("raise", "skip"))
    spoil(own_files / "2.npz")
    options = combined(options, merge=merge)
    with pytest.warns(UserWarning, match=r"skipped .*2\.npz is corrupt"):
        ours, history = fitted(engine, 2, lenient, mlp, **options)  # batches may have one sample left
    with pytest.raises(BadFileError, match=r"2\.npz is corrupt"):
        fitted(engine, 2, strict, **options)
    for record in history:
        assert sum(worker["samples"] for worker in record["workers"]) == sum(SIZES) - SIZES[2]
        assert record["skipped"] == [str(own_files / "2.npz")]
    assert all(np.isfinite(array).all() for array in ours.values())


def write_alike(folder, files=8, rows_of_each=10):
    """Write files of one size, so that where some are missing others come in their place."""
    folder.mkdir(exist_ok=True)
    x, y = classification(samples=files * rows_of_each)
    for number in range(files):
        chosen = slice(number * rows_of_each, (number + 1) * rows_of_each)
        np.savez(folder / f"{number}.npz", x=x[chosen], y=y[chosen])
    return sorted(folder.glob("*.npz"))


AS_THEY_ARE = {"shuffle": None, "shuffle_block_data": False, "num_epochs": 1}
BY_BLOCKS = {"merge": Merge(every=1, unit="blocks")}


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
        (2, Merge(outer_optimizer={"optimizer": "sgd", "lr": 0.7, "momentum": 0.9}), {2, 3}),
        (2, "commutative", {2, 3}),
    ],
    ids=str,
)
def test_a_round_of_only_bad_files_changes_nothing(engine, tmp_path, workers, merge, bad, epochs):
    files = write_alike(tmp_path)
    dataset = FileDataset(files, on_bad_file="skip")
    good = FileDataset([file for number, file in enumerate(files) if number not in bad])
    for number in bad:
        spoil(files[number])
    options = combined(AS_THEY_ARE, merge=merge) | {"num_epochs": epochs}
    options = combined(options, merge=Merge(unit="blocks"))
    ours, history = fitted(engine, workers, dataset, **options)
    theirs, expected = fitted(SerialEngine(), workers, good, **options)
    if merge != "commutative" or workers == 1:  # an outer optimizer takes no step without samples
        assert_same_bits(ours, theirs)
    assert all(np.isfinite(array).all() for array in ours.values())
    assert sorted(record["samples"] for record in history if record["samples"]) == [r["samples"] for r in expected]
    assert len(history) == epochs * 8 // workers
    assert all(np.isnan(record["loss"]) for record in history if not record["samples"])
    assert set(history[-1]["skipped"]) == {str(files[number]) for number in bad}


@pytest.mark.parametrize("options", [POOLS, {"shuffle": "blocks"}, BY_BLOCKS, {"merge": Merge(every=0)}], ids=str)
@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
def test_an_epoch_without_a_readable_file_is_an_error(own_files, merge, options):
    dataset = FileDataset(f"{own_files}/*.npz", on_bad_file="skip")
    for file in own_files.iterdir():
        spoil(file)
    trainer = trainer_of(workers=2)
    before = trainer.get_parameters()
    with (
        pytest.warns(UserWarning, match="skipped"),
        pytest.raises(BadFileError, match=r"^.*\d\.npz is corrupt.*; nor can any other file be read$"),
    ):
        trainer.fit(dataset, num_epochs=3, batch_size=5, **combined(options, merge=merge))
    assert_same_bits(trainer.get_parameters(), before)
    assert sum(record["samples"] for record in trainer.history) == 0
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(BadFileError, match=r"\d\.npz is corrupt"):
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


@pytest.mark.filterwarnings("ignore:skipped")
@pytest.mark.parametrize("bad", [{0}, {4}, {8}, {0, 8}, set(range(8)), set(range(1, 9))], ids=str)
def test_workers_without_samples_have_no_vote_in_a_tree(engine, tmp_path, bad):
    files = write_alike(tmp_path, 9)
    dataset = FileDataset(files, on_bad_file="skip")
    alone = [fitted("serial", 1, FileDataset([file]), mlp, **AS_THEY_ARE)[0] for file in files]
    for number in bad:
        spoil(files[number])
    ours, history = fitted(engine, 9, dataset, mlp, **AS_THEY_ARE)
    good = [version for number, version in enumerate(alone) if number not in bad]
    assert_close(ours, average(good, [10] * len(good)), sum_error(np.float32, 1, largest(*good)))
    assert all(np.isfinite(array).all() for array in ours.values())
    assert history[0]["samples"] == 10 * len(good)


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
