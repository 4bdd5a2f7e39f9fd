"""Reading parts of data sets: errors that name the file, and checks of what was read."""

import errno
import os
import pickle
from dataclasses import replace

import numpy as np
import pytest

from compss_train import BadFileError, FileDataset, PartialShuffleSampler
from compss_train.data.layout import Field, FileContentError
from compss_train.data.order import RowRange
from compss_train.data.readers import CustomReader
from compss_train.data.reading import FileBlock, FilePart, bad_file_errors
from tests.data.readers.checks import names

X, Y = np.arange(12.0).reshape(6, 2), np.arange(6)


@pytest.fixture
def file(tmp_path):
    np.savez(path := tmp_path / "f.npz", x=X, y=Y)
    return str(path)


@pytest.fixture
def part(file):
    return FileDataset([file]).part([0])


def raising(file, error):
    with bad_file_errors(file):
        raise error


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, StopIteration, KeyError, FileNotFoundError])
def test_any_error_becomes_one_that_names_the_file_and_keeps_its_cause(file, kind):
    error = kind("boom")
    with names(file, f"cannot be read: {kind.__name__}: .*boom") as caught:
        raising(file, error)
    assert (caught.value.file, caught.value.__cause__) == (file, error)
    assert str(caught.value) == f"{file} {caught.value.reason}"


@pytest.mark.parametrize("error", [MemoryError(), ModuleNotFoundError("h5py"), KeyboardInterrupt(), SystemExit(1)])
def test_errors_that_are_no_fault_of_the_file_pass_as_they_are(file, error):
    with pytest.raises(type(error)) as caught:
        raising(file, error)
    assert caught.value is error


def test_a_bad_file_error_of_another_file_is_the_cause_of_one_of_this(file):
    for error in (BadFileError(file, "is bad"), BadFileError("other", "is bad")):
        with names(file, "is bad$") as caught:
            raising(file, error)
        assert caught.value is error or caught.value.__cause__ is error
        assert caught.value.file == file


@pytest.mark.parametrize("number", ["EMFILE", "ENFILE", "ENOMEM", "EAGAIN", "ESTALE", "ETIMEDOUT"])
@pytest.mark.parametrize("reading", [False, True])
def test_no_file_is_skipped_for_errors_of_the_machine(file, number, reading):
    def reader(filename, get_data=False):
        if get_data == reading:
            raise OSError(getattr(errno, number), "boom")
        return 6

    with pytest.raises(OSError, match="boom") as caught:
        PartialShuffleSampler(FileDataset(file, reader, on_bad_file="skip"))
    assert caught.value.__notes__ == [f"while reading {file}"]


def test_the_message_of_a_reader_follows_the_name_of_the_file(file):
    with pytest.raises(BadFileError) as caught:
        raising(file, FileContentError("holds no samples"))
    assert str(caught.value) == f"{file} holds no samples"
    assert caught.value.__suppress_context__


def test_any_error_of_an_empty_file_but_no_folder_says_that_it_is_empty(tmp_path, monkeypatch):
    (tmp_path / "f").touch()
    with names(tmp_path / "f", "is empty$") as caught:
        raising(str(tmp_path / "f"), EOFError("boom"))
    assert isinstance(caught.value.__cause__, EOFError)
    monkeypatch.setattr(os.path, "getsize", lambda path: 0)  # of a folder, as on some file systems
    with names(tmp_path, "cannot be read: IsADirectoryError"):
        raising(str(tmp_path), IsADirectoryError("boom"))


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "gone", "f.npz"), FileNotFoundError("gone")])
def test_a_file_that_is_not_found_does_not_exist_and_another_one_is_named(file, monkeypatch, tmp_path, error):
    monkeypatch.chdir(tmp_path)
    told = r"^g\.npz does not exist; give a name that is valid on the machine that reads it"
    with pytest.raises(BadFileError, match=told):
        raising("g.npz", error)
    with names(file, r"cannot be read: .*gone"):
        raising(file, error)


def test_a_bad_file_error_is_pickled(file):
    error = pickle.loads(pickle.dumps(BadFileError(file, "is bad")))
    assert (error.file, error.reason, str(error)) == (file, "is bad", f"{file} is bad")
    assert isinstance(error, ValueError)


def test_a_part_reads_rows_of_its_files_by_number(tmp_path):
    for number in range(3):
        np.savez(tmp_path / f"{number}.npz", x=X + number)
    part = FileDataset(tmp_path / "*.npz").part([2, 0])
    np.testing.assert_array_equal(part.read(RowRange(2, 1, 4))["x"], X[1:4] + 2)
    np.testing.assert_array_equal(part.read(RowRange(0, 5, 6))["x"], X[5:])
    with pytest.raises(KeyError):
        part.read(RowRange(1, 0, 6))


def test_a_part_is_pickled_small(part):
    assert len(pickle.dumps(part)) < 1_000
    again = pickle.loads(pickle.dumps(part))
    assert again == replace(part, reader=again.reader)
    np.testing.assert_array_equal(again.read(RowRange(0, 0, 6))["x"], X)


@pytest.mark.parametrize("rows", [3, 5, 7, 12])
def test_a_file_of_another_number_of_samples_is_an_error_even_where_the_rows_are_there(file, part, rows):
    np.savez(file, x=np.resize(X, (rows, 2)), y=np.arange(rows))
    with names(file, f"has {rows} samples, but 6 were expected: check whether it changed, or files_len is wrong"):
        part.read(RowRange(0, 0, 2))


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": X}, "holds arrays 'x', but first holds 'x', 'y'"),
        ({"x": X, "y": Y, "z": Y}, "holds arrays 'x', 'y', 'z', but first holds 'x', 'y'"),
        ({"x": X[:, :1], "y": Y}, r"holds samples of float64 \(1,\) in 'x', but first of float64 \(2,\)"),
        ({"x": X, "y": Y.astype("i4")}, r"holds samples of int32 \(\) in 'y', but first of int64 \(\)"),
    ],
)
def test_a_file_of_another_layout_is_an_error_where_the_layout_is_known(file, part, arrays, reason):
    np.savez(file, **arrays)
    assert set(replace(part, layout=None).read(RowRange(0, 0, 2))) == set(arrays)
    with names(file, reason):
        replace(part, reference="first").read(RowRange(0, 0, 2))


def test_a_part_of_a_users_reader_is_checked_as_well():
    part = FilePart(
        reader=CustomReader(lambda f, get_data=False: ({"x": X}, 6)),
        blocks={n: FileBlock(path="a://b", rows=rows, file_rows=rows) for n, rows in enumerate((5, 6))},
        keys=None,
        layout={"x": Field("int8", ())},
        reference="c",
    )
    with pytest.raises(BadFileError, match="a://b has 6 samples, but 5 were expected"):
        part.read(RowRange(0, 0, 5))
    with pytest.raises(BadFileError, match=r"a://b holds samples of float64 \(2,\) in 'x', but c of int8 \(\)"):
        part.read(RowRange(1, 0, 5))
