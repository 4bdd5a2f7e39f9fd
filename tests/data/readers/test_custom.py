"""Readers of the user, and the selection of a file's reader."""

import numpy as np
import pytest
import torch

from compss_train import BadFileError, FileDataset
from compss_train.data.order import RowRange
from compss_train.data.readers import (
    READERS,
    CustomReader,
    Hdf5Reader,
    NpzReader,
    Reader,
    as_reader,
)
from tests.data.readers.formats import X, Y, names, read_bin, read_file, same


class Shifted(NpzReader):
    """Returns other rows than requested."""

    def __init__(self, rows):
        self.rows = rows

    def read(self, path, start, stop, keys=None):
        arrays, rows = super().read(path, 0, 7, keys)
        return {**arrays, "y": arrays["y"][: self.rows]}, rows


@pytest.mark.parametrize("rows", [0, 2, 4, 7])
def test_a_reader_of_other_rows_than_requested_is_an_error(tmp_path, rows):
    np.savez(path := tmp_path / "f.npz", x=X[:, 0], y=Y)
    part = FileDataset(path, Shifted(rows), keys=["y"]).part([0])
    with names(path, "was read incorrectly: 'y' lacks some of the rows 2 to 5"):
        part.read(RowRange(0, 2, 5))


@pytest.mark.parametrize(("failures", "is_read"), [(9, True), (10, False)])
def test_a_function_is_called_again_where_python_cannot_parse_in_threads(
    tmp_path, failures, is_read
):
    """CPython 3.11: numpy's headers, which it parses as Python, in several threads at once."""
    path = tmp_path / "f"
    path.write_text("content")
    errors = [SystemError("AST constructor recursion depth mismatch (before=6, after=5)")]
    left = errors * failures

    def function(filename, get_data=False):
        if get_data and left:
            raise left.pop()
        return ({"x": X, "y": Y}, 7) if get_data else 7

    if is_read:
        same(read_file(path, function)["x"], X)
    else:
        with names(path, "cannot be read: SystemError"):
            read_file(path, function)


@pytest.mark.parametrize(
    ("counted", "returned", "name"),
    [
        (None, None, "NoneType"),
        (3.0, None, "float"),
        (True, None, "bool"),
        (({"x": X}, 7), None, "tuple"),
        (torch.tensor(7), None, "Tensor"),
        (0, None, "the reader returned 0"),
        (np.int64(-5), None, "the reader returned -5"),
        (7, None, "(dict of arrays, number)"),
        (7, {"x": X}, "(dict of arrays, number)"),
        (7, (X, 7), "(dict of arrays, number)"),
        (7, ({"x": X}, 7, 7), "(dict of arrays, number)"),
        (7, [{"x": X}, 7], "(dict of arrays, number)"),
        (7, ({"x": X, "y": Y[:5]}, 7), "different lengths: 'x' 7, 'y' 5"),
        (7, ({"x": X}, 6), "the reader returned 6"),
        (7, ({"x": X[:6]}, 6), "6 samples"),
        (7, ({}, 7), "holds no arrays"),
        (7, ({"x": X[:0]}, 0), "holds no samples"),
        (7, ({"x": torch.tensor(3)}, 7), "holds a single value in 'x'"),
        (7, ({"x": None}, 7), "holds a single value in 'x'"),
        (7, ({"x": [object()] * 7}, 7), "holds Python objects in 'x'"),
        (7, ({"x": [[1], [2, 3]] * 3}, 7), "cannot be read: ValueError"),
    ],
)
def test_what_is_not_arrays_and_their_number_is_an_error(tmp_path, counted, returned, name, raises):
    path = tmp_path / "f"
    path.write_text("content")
    with raises(BadFileError, name):
        read_file(path, lambda filename, get_data=False: returned if get_data else counted)


@pytest.mark.parametrize("fails", [False, True], ids=["counting", "reading"])
@pytest.mark.parametrize("kind", [ValueError, OSError, ZeroDivisionError, StopIteration])
def test_what_a_reader_raises_is_the_cause_of_an_error(tmp_path, kind, fails):
    def reader(filename, get_data=False):
        if get_data == fails:
            raise error
        return 3

    (tmp_path / "f").write_text("content")
    error = kind("boom")
    with names(tmp_path / "f", f"cannot be read: {kind.__name__}: boom") as caught:
        read_file(tmp_path / "f", reader)
    assert (caught.value.file, caught.value.__cause__) == (str(tmp_path / "f"), error)
    assert str(caught.value) == f"{caught.value.file} {caught.value.reason}"


@pytest.mark.parametrize("fails", [False, True], ids=["counting", "reading"])
@pytest.mark.parametrize(
    "error",
    [MemoryError("full"), ModuleNotFoundError("h5py"), KeyboardInterrupt(), SystemExit(1)],
    ids=repr,
)
def test_errors_that_are_no_fault_of_the_file_pass(tmp_path, error, fails):
    def reader(filename, get_data=False):
        if get_data == fails:
            raise error
        return 3

    (tmp_path / "f").touch()
    with pytest.raises(type(error)) as caught:
        read_file(tmp_path / "f", reader, on_bad_file="skip")
    assert caught.value is error


def test_a_built_in_reader_of_an_unknown_store_says_so():
    with names("store://bucket/f.npz", "cannot be read: ValueError: Protocol not known: store"):
        FileDataset(["store://bucket/f.npz"])


@pytest.mark.parametrize("suffix", READERS)
def test_the_suffix_selects_the_reader(suffix):
    for change in (str, str.upper, lambda suffix: f".backup{suffix}"):
        assert type(as_reader(None, [f"a/b{change(suffix)}", f"c{suffix}"])) is READERS[suffix]
    assert type(as_reader(None, ["a.h5", "b.hdf5", "c.H5"])) is Hdf5Reader


@pytest.mark.parametrize("files", [["a.npz", "b.npy"], ["a.npz", "b.csv"], ["a.txt"], []])
def test_ends_that_are_unknown_or_differ_are_errors(files):
    with pytest.raises(ValueError, match=r"give files of one format, \.npz, .*, or a reader"):
        as_reader(None, files)
    with pytest.raises(
        ValueError, match=("a does not exist; give a folder of images, or files of a known format")
    ):
        as_reader(None, ["a"])


def test_a_reader_that_is_given_is_taken_for_any_names(tmp_path):
    reader = NpzReader()
    assert as_reader(reader, ["a.csv", "b"]) is reader
    reader = as_reader(read_bin, ["a.csv", "b.npz"])
    assert isinstance(reader, CustomReader)
    assert isinstance(reader, Reader)
    assert reader.function is read_bin
    np.savez(tmp_path / "f.npz", x=X)
    (tmp_path / "f.npz").rename(tmp_path / "f.dat")
    same(read_file(tmp_path / "f.dat", reader)["x"], X)
    same(read_file(tmp_path / "f.dat", NpzReader)["x"], X)  # the class does, too


@pytest.mark.parametrize("reader", [3, "npz", {"x": 1}])
def test_what_cannot_be_called_is_no_reader(reader):
    with pytest.raises(
        TypeError, match=r"give a function reader\(filename, get_data=False\), or None"
    ):
        as_reader(reader, ["a.npz"])
