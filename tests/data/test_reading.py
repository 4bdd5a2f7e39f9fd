"""Reading parts of data sets: errors that name the file, and checks of what was read."""

import errno
import os
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train import BadFileError, FileDataset, PartialShuffleSampler
from compss_train.data.layout import Field, FileContentError, check_same_layout
from compss_train.data.order import RowRange
from compss_train.data.reading import bad_file_errors
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
    with names(file, reason.replace("first", re.escape(file))):
        part.read(RowRange(0, 0, 2))


NAMES = st.text("abcxyz", min_size=1, max_size=3)
FIELDS = st.builds(Field, st.sampled_from(["float32", "int64", "torch.float32"]), st.tuples(st.integers(0, 3)))
LAYOUTS = st.dictionaries(NAMES, FIELDS, min_size=1, max_size=3)


@given(layout=LAYOUTS, other=LAYOUTS)
def test_layouts_are_alike_in_any_order_or_an_error_says_in_what_they_differ(layout, other):
    check_same_layout(dict(reversed(layout.items())), layout, "a.npz")
    if layout == other:
        check_same_layout(layout, other, "a.npz")
        return
    with pytest.raises(FileContentError, match=r"^holds (arrays|samples of) .*, but a\.npz (holds|of) ") as caught:
        check_same_layout(layout, other, "a.npz")
    differ = [key for key in layout if layout[key] != other.get(key)] or set(other) - set(layout)
    assert any(repr(key) in str(caught.value) for key in differ)
