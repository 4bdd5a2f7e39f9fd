"""Reading and writing data sets: errors that name the file, and checks of what was read."""

import errno
import os
import pickle
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compss_train import (
    BadFileError,
    BlockedTensor,
    FileDataset,
    PartialShuffleSampler,
    Ragged,
    write_files,
)
from compss_train.data.layout import Field, FileContentError, check_same_layout
from compss_train.data.order import RowRange
from compss_train.data.reading import bad_file_errors
from compss_train.data.writing import FORMATS, write_parts
from tests.data.readers.formats import names

X = np.arange(12.0).reshape(6, 2)
Y = np.arange(6)


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


def test_the_error_of_another_file_is_the_cause(file):
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


def test_the_error_of_an_empty_file_says_so(tmp_path, monkeypatch):
    (tmp_path / "f").touch()
    with names(tmp_path / "f", "is empty$") as caught:
        raising(str(tmp_path / "f"), EOFError("boom"))
    assert isinstance(caught.value.__cause__, EOFError)
    monkeypatch.setattr(os.path, "getsize", lambda path: 0)  # of a folder, as on some file systems
    with names(tmp_path, "cannot be read: IsADirectoryError"):
        raising(str(tmp_path), IsADirectoryError("boom"))


@pytest.mark.parametrize(
    "error", [FileNotFoundError(errno.ENOENT, "gone", "f.npz"), FileNotFoundError("gone")]
)
def test_a_file_that_is_not_found_is_named(file, monkeypatch, tmp_path, error):
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
def test_a_file_of_another_number_of_samples_is_an_error(file, part, rows):
    np.savez(file, x=np.resize(X, (rows, 2)), y=np.arange(rows))
    with names(
        file,
        (
            f"has {rows} samples, but 6 were expected: check whether it changed, or "
            "files_len is wrong"
        ),
    ):
        part.read(RowRange(0, 0, 2))


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": X}, "holds arrays 'x', but first holds 'x', 'y'"),
        ({"x": X, "y": Y, "z": Y}, "holds arrays 'x', 'y', 'z', but first holds 'x', 'y'"),
        (
            {"x": X[:, :1], "y": Y},
            r"holds samples of float64 \(1,\) in 'x', but first of float64 \(2,\)",
        ),
        (
            {"x": X, "y": Y.astype("i4")},
            r"holds samples of int32 \(\) in 'y', but first of int64 \(\)",
        ),
    ],
)
def test_a_file_of_another_layout_is_an_error(file, part, arrays, reason):
    np.savez(file, **arrays)
    assert set(replace(part, layout=None).read(RowRange(0, 0, 2))) == set(arrays)
    with names(file, reason.replace("first", re.escape(file))):
        part.read(RowRange(0, 0, 2))


NAMES = st.text("abcxyz", min_size=1, max_size=3)
FIELDS = st.builds(
    Field, st.sampled_from(["float32", "int64", "torch.float32"]), st.tuples(st.integers(0, 3))
)
LAYOUTS = st.dictionaries(NAMES, FIELDS, min_size=1, max_size=3)


@given(layout=LAYOUTS, other=LAYOUTS)
def test_layouts_are_alike_or_an_error_tells_the_difference(layout, other):
    check_same_layout(dict(reversed(layout.items())), layout, "a.npz")
    if layout == other:
        check_same_layout(layout, other, "a.npz")
        return
    with pytest.raises(
        FileContentError, match=r"^holds (arrays|samples of) .*, but a\.npz (holds|of) "
    ) as caught:
        check_same_layout(layout, other, "a.npz")
    differ = [key for key in layout if layout[key] != other.get(key)] or set(other) - set(layout)
    assert any(repr(key) in str(caught.value) for key in differ)


AWKWARD = [
    "file",
    "allow_pickle",
    "self",
    "args",
    "x.npy",
    "x",
    "compression",
    "a/b",
    "ünï",
    ("two words"),
]


def whole(files, key="x"):
    return np.asarray(BlockedTensor.from_files(files, key).collect())


@pytest.mark.parametrize("format", [name for name in FORMATS if name != "npy"])
@given(samples=st.integers(1, 30), rows=st.integers(1, 12))
def test_what_is_written_is_read_again_in_order(tmp_path_factory, format, samples, rows):
    x = np.random.default_rng(0).normal(size=(samples, 2, 3)).astype(np.float32)
    y = np.arange(samples)
    names = write_files(
        tmp_path_factory.mktemp("files"), {"x": x, "y": y}, rows=rows, format=format
    )
    files = FileDataset(names)
    assert files.sizes == tuple(min(rows, samples - start) for start in range(0, samples, rows))
    np.testing.assert_array_equal(whole(names), x)
    np.testing.assert_array_equal(whole(names, "y"), y)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 9))
def test_blocks_are_split_again(tmp_path_factory, sizes, rows):
    x = np.arange(2 * sum(sizes)).reshape(-1, 2)
    cuts = np.cumsum(sizes)[:-1]
    for block in (np.asarray, torch.from_numpy):
        tensor = BlockedTensor([[block(part)] for part in np.split(x, cuts)])
        names = write_files(tmp_path_factory.mktemp("files"), {"x": tensor}, rows=rows)
        np.testing.assert_array_equal(whole(names), x)


def test_one_array_can_be_npy_files_which_are_mapped(tmp_path):
    names = write_files(tmp_path, {"x": np.arange(12)}, rows=1, format="npy")
    assert names == [str(tmp_path / f"part-{number:06d}.npy") for number in range(12)]
    tensor = BlockedTensor.from_files(f"{tmp_path}/*.npy")
    assert all(isinstance(block, np.memmap) for block in tensor.blocks())
    assert tensor.collect().tolist() == list(range(12))


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("format", FORMATS)
def test_a_failure_midway_leaves_only_the_old_files(tmp_path, format, error):
    def parts():
        yield {"x": np.arange(3)}
        yield {"x": np.arange(3)}
        raise error

    (tmp_path / "notes.txt").touch()
    with pytest.raises(type(error)):
        write_parts(tmp_path, parts(), format=format)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    write_parts(tmp_path, [{"x": np.arange(3)}], format=format)  # which another try may


@pytest.mark.parametrize("format", FORMATS)
def test_a_part_that_cannot_be_written_leaves_no_files(tmp_path, format):
    with pytest.raises((ValueError, TypeError)):
        write_parts(tmp_path, [{"x": np.arange(3)}, {"x": np.array([object()] * 3)}], format=format)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", [name for name in FORMATS if name != "npy"])
def test_arrays_may_have_any_name(tmp_path, format):
    arrays = {name: np.arange(3) + number for number, name in enumerate(AWKWARD)}
    files = write_files(tmp_path, arrays, rows=2, format=format)
    for name, array in arrays.items():
        np.testing.assert_array_equal(whole(files, name), array)
    assert set(FileDataset(files).layout) == set(AWKWARD)


@pytest.mark.parametrize(
    ("arrays", "options", "name"),
    [
        ({"x": np.ones(3), "y": np.ones(4)}, {}, "different lengths: 'x' 3, 'y' 4"),
        ({}, {}, "no arrays"),
        ({"x": np.ones((0, 2))}, {}, "no samples"),
        ({"x": np.ones(3)}, {"rows": 0}, "rows=0"),
        ({"x": np.ones(3)}, {"format": "csv"}, "format='csv'"),
        ({"x": np.ones(3), "y": np.ones(3)}, {"format": "npy"}, "use the format npz"),
        *(({"x": Ragged([[1.0], [2.0, 3.0]])}, {"format": name}, "'x'") for name in FORMATS),
    ],
)
def test_what_cannot_be_written_is_an_error(tmp_path, arrays, options, name, raises):
    with raises(ValueError, name):
        write_files(tmp_path, arrays, **{"rows": 2, **options})
    assert not list(tmp_path.iterdir())


def test_files_of_two_data_sets_do_not_mix(tmp_path):
    write_files(tmp_path, {"x": np.arange(4)}, rows=2)
    with pytest.raises(ValueError, match=r"already contains part-00000\d\.npz"):
        write_files(tmp_path, {"x": np.arange(4)}, rows=2)


def test_a_slice_of_a_tensor_is_written_without_the_rest(tmp_path):
    tensor = torch.zeros(10_000, 10)
    name = write_files(tmp_path, {"x": tensor[:10]}, rows=10, format="pt")[0]
    assert Path(name).stat().st_size < 10_000
