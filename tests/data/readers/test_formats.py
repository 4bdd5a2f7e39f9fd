"""Properties of every format, and files without samples or truncated files."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compss_train import BadFileError, DistributedTrainer, FileDataset, PartialShuffleSampler
from compss_train.data.order import RowRange
from compss_train.data.reading import bad_file_errors
from tests.data.readers.formats import (
    FORMATS,
    NAMED,
    OWN,
    X,
    filled,
    in_every,
    names,
    read_file,
    same,
)

DTYPES = [np.uint8, np.int64, np.float32, np.float16, np.bool_, np.complex64]
SHAPES = [(5,), (5, 3), (5, 2, 2), (1,), (4, 0)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@in_every(FORMATS)
def test_what_was_saved_is_read(tmp_path, form, shape):
    for dtype in DTYPES:
        array = filled(shape, dtype)
        path = form.saved(tmp_path, dtype.__name__, x=array)
        arrays, rows = form.reader.read(path, 0, len(array))
        assert (list(arrays), rows) == (["x"], len(array))
        same(arrays["x"], array)


@pytest.fixture(scope="module")
def long_files(tmp_path_factory):
    array = filled((40, 3))
    folder = tmp_path_factory.mktemp("long")
    return array, {
        name: form.saved(folder, name.replace(" ", ""), x=array) for name, form in FORMATS.items()
    }


@given(bounds=st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted))
@pytest.mark.parametrize("kind", FORMATS)
def test_rows_of_a_file_are_the_slice(long_files, kind, bounds):
    array, paths = long_files
    arrays, rows = FORMATS[kind].reader.read(paths[kind], *bounds)
    assert rows == 40
    same(arrays["x"], array[slice(*bounds)])


@in_every(NAMED)
def test_arrays_are_read_by_name_in_the_order_of_keys(tmp_path, form):
    saved = {"y": np.arange(5), "x": filled((5, 2)), "weights": filled((5,), np.float16)}
    path = form.saved(tmp_path, **saved)
    arrays, rows = form.reader.read(path, 1, 4)
    assert (set(arrays), rows) == (set(saved), 5)
    for key, array in saved.items():
        same(arrays[key], array[1:4])
    assert list(form.reader.read(path, 0, 5, ("weights", "y"))[0]) == ["weights", "y"]
    described = form.reader.describe(path, ("weights", "y")).layout
    assert described is None or list(described) == ["weights", "y"]


@in_every(FORMATS)
def test_the_error_of_a_missing_array_lists_what_is_there(tmp_path, form):
    path = form.saved(tmp_path, x=filled((5, 2)))
    with names(path, "has no array 'nope', 'nor this'; it has 'x'"):
        read_file(path, form.function, keys=["nope", "x", "nor this"])


@in_every(FORMATS)
def test_readers_are_pickled_and_read_in_many_threads(tmp_path, form):
    array = filled((64, 3))
    path = form.saved(tmp_path, x=array)
    reader = pickle.loads(pickle.dumps(form.reader))
    with ThreadPoolExecutor(8) as threads:
        for start, (arrays, _) in enumerate(
            threads.map(lambda i: reader.read(path, i, i + 4), range(40))
        ):
            same(arrays["x"], array[start : start + 4])


def without_rows(form, folder):
    form.saved(folder, x=np.zeros((0, 3)))


def empty(form, folder):
    Path(form.path(folder)).touch()


def a_folder(form, folder):
    os.mkdir(form.path(folder))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (without_rows, "holds no samples"),
        (empty, "is empty$"),
        (a_folder, "cannot be read: IsADirectoryError"),
        (lambda form, folder: None, "does not exist"),
        (
            lambda form, folder: form.saved(folder, x=np.float32(3)),
            ("holds a single value in 'x' instead of a row"),
        ),
        (lambda form, folder: form.named and form.saved(folder), "holds no arrays"),
    ],
    ids=["no rows", "empty", "folder", "missing", "single value", "no arrays"],
)
@in_every(OWN)
def test_a_file_without_samples_is_an_error_that_says_so(tmp_path, form, make, reason):
    made = make(form, tmp_path)
    with names(form.path(tmp_path), reason if made is not False else "does not exist"):
        FileDataset([form.path(tmp_path)])


@in_every(FORMATS)
def test_a_file_that_is_gone_when_read_is_an_error(tmp_path, form):
    part = FileDataset([form.saved(tmp_path, x=np.arange(3))], form.function).part([0])
    os.remove(form.path(tmp_path))
    with names(form.path(tmp_path), "does not exist"), bad_file_errors(part.blocks[0].path):
        part.reader.read(part.blocks[0].path, 0, 3)


@pytest.mark.parametrize(
    "content", [b"garbage" * 30, bytes(300), b"\x93NUMPY\x01\x00", b"\x89HDF\r\n\x1a\n"]
)
@in_every(OWN)
def test_a_file_of_something_else_is_an_error(tmp_path, form, content):
    with open(path := form.path(tmp_path), "wb") as file:
        file.write(content)
    with names(path):
        FileDataset([path])


@in_every(FORMATS)
def test_a_file_cut_short_anywhere_is_an_error(tmp_path, form):
    path = form.saved(tmp_path, x=filled((30, 3)))
    with open(path, "rb") as file:
        content = file.read()
    cuts = {
        *range(0, len(content), 1 + len(content) // 60),
        7,
        9,
        len(content) // 2,
        len(content) - 1,
    }
    for cut in sorted(cuts):
        os.truncate(path, 0)
        with open(path, "wb") as file:
            file.write(content[:cut])
        with names(path):
            read_file(path, form.function)


UNFIT = {
    "strings": np.array(["a", "bc", "d"]),
    "bytes": np.array([b"a", b"bc", b"d"]),
    "structured": np.zeros(3, [("a", "i4"), ("b", "f4")]),
    "nested": np.zeros(3, [("a", [("b", "i4")]), ("c", "f4", (2,))]),
    "padded": np.zeros(3, {"names": ["a", "b"], "formats": ["i4", "f4"], "offsets": [0, 8]}),
    "long": np.ones((3, 2), np.longdouble),
    "void": np.zeros(3, "V4"),
    "big-endian": np.ones((3, 2), ">f4"),
    "dates": np.array(["2024-01-01"] * 3, "M8[D]"),
    "durations": np.ones(3, "m8[s]"),
}

HOLDS = [
    (kind, form)
    for kind in UNFIT
    for form in ("npz", "npy", "hdf5", "custom")
    if form != "hdf5" or kind not in ("strings", "dates", "durations")  # which h5py does not write
]


@pytest.mark.parametrize(("kind", "form"), HOLDS)
def test_an_array_that_torch_cannot_hold_is_named_before_training(tmp_path, kind, form):
    form = FORMATS[form]
    path = form.saved(tmp_path, x=UNFIT[kind])
    dataset = FileDataset(path, form.function)  # counting needs no torch
    reason = (
        "holds .* in 'x', which torch cannot hold; convert it, or select the other arrays "
        "with keys=$"
    )
    with names(path, reason):
        dataset.part([0]).read(RowRange(0, 0, 3))
    with names(path, reason):
        PartialShuffleSampler(dataset)
    trainer = DistributedTrainer(1, engine="serial")
    trainer.build(torch.nn.Linear(2, 1), {"optimizer": "sgd", "lr": 0.1}, "mse")
    for use in (partial(trainer.fit, num_epochs=1, batch_size=3), trainer.evaluate):
        with names(path, reason):
            use(FileDataset(path, form.function, y=None))


@pytest.mark.parametrize("kind", UNFIT)
def test_an_unread_array_that_torch_cannot_hold_does_no_harm(tmp_path, kind):
    np.savez(path := tmp_path / "f.npz", x=X[:3], z=UNFIT[kind])
    same(read_file(path, keys=["x"])["x"], X[:3])
    (batch,) = PartialShuffleSampler(FileDataset(path, keys=["x"]), batch_size=3)
    assert list(batch) == ["x"]
    with names(path, "holds .* in 'z', which torch cannot hold"):
        PartialShuffleSampler(FileDataset(path))


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt", ".h5", ".parquet", ".csv"])
def test_a_pipe_in_place_of_a_file_is_an_error(tmp_path, suffix):
    os.mkfifo(tmp_path / f"x{suffix}")
    with pytest.raises(BadFileError, match="is no regular file"):
        FileDataset(tmp_path / f"x{suffix}")
