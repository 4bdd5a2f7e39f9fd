"""Properties of every format, and files without samples or truncated files."""

import gc
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compss_train import FileDataset
from compss_train.data.reading import bad_file_errors, layout_of
from tests.data.readers.checks import filled, in_every, names, same
from tests.data.readers.formats import FORMATS, NAMED, OWN, read_file

DTYPES = [np.uint8, np.int64, np.float32, np.float16, np.bool_, np.complex64]

SHAPES = [(5,), (5, 3), (5, 2, 2), (1,), (4, 0)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
@in_every(FORMATS)
def test_what_was_saved_is_read(tmp_path, form, dtype, shape):
    array = filled(shape, dtype)
    path = form.saved(tmp_path, x=array)
    arrays, rows = form.reader.read(path, 0, len(array))
    assert (list(arrays), rows) == (["x"], len(array))
    same(arrays["x"], array)


@pytest.mark.parametrize(
    "turned",
    [np.asfortranarray, np.transpose, lambda array: array[::-1], lambda array: array[::2, 1:]],
    ids=["fortran", "transposed", "backwards", "strided"],
)
@in_every(FORMATS)
def test_the_memory_layout_of_what_was_saved_makes_no_difference(tmp_path, form, turned):
    array = turned(filled((6, 4)))
    path = form.saved(tmp_path, x=array)
    same(form.reader.read(path, 0, len(array))[0]["x"], array)
    same(form.reader.read(path, 1, 3)[0]["x"], array[1:3])


@pytest.fixture(scope="module")
def long_files(tmp_path_factory):
    array = filled((40, 3))
    folder = tmp_path_factory.mktemp("long")
    return array, {name: form.saved(folder, name.replace(" ", ""), x=array) for name, form in FORMATS.items()}


@settings(max_examples=30, deadline=None)
@given(bounds=st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted))
@pytest.mark.parametrize("kind", FORMATS)
def test_rows_of_a_file_are_the_slice(long_files, kind, bounds):
    array, paths = long_files
    arrays, rows = FORMATS[kind].reader.read(paths[kind], *bounds)
    assert rows == 40
    same(arrays["x"], array[slice(*bounds)])


@in_every(NAMED)
def test_several_arrays_are_read_by_name(tmp_path, form):
    saved = {"y": np.arange(5), "x": filled((5, 2)), "weights": filled((5,), np.float16)}
    arrays, rows = form.reader.read(form.saved(tmp_path, **saved), 1, 4)
    assert (set(arrays), rows) == (set(saved), 5)
    for key, array in saved.items():
        same(arrays[key], array[1:4])


@in_every(NAMED)
def test_keys_chooses_arrays_in_its_order(tmp_path, form):
    path = form.saved(tmp_path, a=filled((5, 2)), b=np.arange(5), c=np.arange(5))
    arrays, _ = form.reader.read(path, 0, 5, ("c", "a"))
    assert list(arrays) == ["c", "a"]
    described = form.reader.describe(path, ("c", "a")).layout
    assert described is None or list(described) == ["c", "a"]


@in_every(FORMATS)
def test_an_array_that_is_not_there_is_an_error_that_lists_what_is(tmp_path, form):
    path = form.saved(tmp_path, x=filled((5, 2)))
    with names(path, "has no array 'nope', 'nor this'; it has 'x'"):
        read_file(path, form.function, keys=["nope", "x", "nor this"])


@in_every(NAMED)
def test_arrays_that_are_not_selected_can_be_anything(tmp_path, form):
    path = form.saved(tmp_path, x=filled((5, 2)), y=np.arange(3), z=np.zeros(0))
    if form.function is None:
        same(read_file(path, keys=["x"])["x"], filled((5, 2)))
    with names(path, "holds arrays of different lengths: .*'y' 3.*; each needs a row per sample"):
        read_file(path, form.function)


@in_every(FORMATS)
def test_a_reader_is_called_as_the_users_own_are(tmp_path, form):
    array = filled((6, 2))
    path = form.saved(tmp_path, x=array)
    assert form.reader(path) == 6
    assert form.reader(path, get_data=False) == 6
    arrays, rows = form.reader(path, True)
    assert rows == 6
    same(arrays["x"], array)


@in_every(FORMATS)
def test_what_is_read_is_not_the_files(tmp_path, form):
    array = filled((6, 2))
    path = form.saved(tmp_path, x=array)
    with open(path, "rb") as file:
        content = file.read()
    arrays, _ = form.reader.read(path, 0, 6)
    arrays["x"][...] = 0
    with open(path, "rb") as file:
        assert file.read() == content
    same(form.reader.read(path, 0, 6)[0]["x"], array)


@in_every(OWN)
def test_a_description_is_of_what_is_read(tmp_path, form):
    path = form.saved(tmp_path, x=filled((6, 2, 3), np.float16))
    described = form.reader.describe(path)
    arrays, rows = form.reader.read(path, 2, 4)
    assert (described.rows, described.layout) == (rows, layout_of(arrays))
    assert described.layout["x"].dtype in ("float16", "torch.float16")
    assert described.layout["x"].shape == (2, 3)


@in_every(FORMATS)
def test_readers_are_pickled_and_read_in_many_threads(tmp_path, form):
    array = filled((64, 3))
    path = form.saved(tmp_path, x=array)
    reader = pickle.loads(pickle.dumps(form.reader))
    with ThreadPoolExecutor(8) as threads:
        for start, (arrays, _) in enumerate(threads.map(lambda i: reader.read(path, i, i + 4), range(40))):
            same(arrays["x"], array[start : start + 4])


@in_every(FORMATS)
def test_no_file_stays_open_after_an_error(tmp_path, form):
    path = Path(form.saved(tmp_path, x=np.zeros((0, 3))))
    for _ in range(3):
        with names(str(path)):
            FileDataset([str(path)], form.function)
    gc.collect()  # errors and the frames that they come from refer to each other
    assert path not in open_files()
    if path.is_file():
        with path.open("rb"):
            assert path in open_files()


def open_files():
    """Return the paths of the files that this process has open; threads of other tests may have some."""
    return [Path(os.readlink(each)) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]


@in_every(FORMATS)
def test_a_file_without_rows_is_an_error(tmp_path, form):
    path = form.saved(tmp_path, x=np.zeros((0, 3)))
    with names(path, "holds no samples"):
        FileDataset([path], form.function)


@in_every(OWN)
def test_a_single_value_is_an_error(tmp_path, form):
    path = form.saved(tmp_path, x=np.float32(3))
    with names(path, "holds a single value in 'x' instead of a row per sample"):
        FileDataset([path])


@in_every({name: form for name, form in OWN.items() if form.named})
def test_a_file_without_arrays_is_an_error(tmp_path, form):
    path = form.saved(tmp_path)
    with names(path, "holds no arrays"):
        FileDataset([path])


@in_every(FORMATS)
def test_an_empty_file_is_an_error_that_says_so(tmp_path, form):
    path = form.path(tmp_path)
    open(path, "w").close()
    with names(path, "is empty$"):
        FileDataset([path], form.function)


@in_every(FORMATS)
def test_a_missing_file_is_an_error_that_says_so(tmp_path, form):
    path = form.path(tmp_path)
    with names(path, "does not exist"):
        FileDataset([path], form.function)


@in_every(FORMATS)
def test_a_file_that_is_gone_when_it_is_read_is_an_error_that_says_so(tmp_path, form):
    part = FileDataset([form.saved(tmp_path, x=np.arange(3))], form.function).part([0])
    os.remove(form.path(tmp_path))
    with names(form.path(tmp_path), "does not exist"), bad_file_errors(part.blocks[0].path):
        part.reader.read(part.blocks[0].path, 0, 3)


@in_every(FORMATS)
def test_a_folder_is_an_error(tmp_path, form):
    path = form.path(tmp_path)
    os.mkdir(path)
    with names(path, "cannot be read: IsADirectoryError"):
        FileDataset([path], form.function)


@pytest.mark.parametrize("content", [b"garbage" * 30, bytes(300), b"\x93NUMPY\x01\x00", b"\x89HDF\r\n\x1a\n"])
@in_every(OWN)
def test_a_file_of_something_else_is_an_error(tmp_path, form, content):
    with open(path := form.path(tmp_path), "wb") as file:
        file.write(content)
    with names(path):
        FileDataset([path])


@in_every(FORMATS)
def test_a_file_cut_short_anywhere_is_an_error_when_it_is_counted_or_read(tmp_path, form):
    path = form.saved(tmp_path, x=filled((30, 3)))
    with open(path, "rb") as file:
        content = file.read()
    cuts = {*range(0, len(content), 1 + len(content) // 60), 7, 9, len(content) // 2, len(content) - 1}
    for cut in sorted(cuts):
        os.truncate(path, 0)
        with open(path, "wb") as file:
            file.write(content[:cut])
        with names(path):
            read_file(path, form.function)


@in_every(OWN)
def test_a_file_cut_short_after_it_was_counted_is_an_error_when_it_is_read(tmp_path, form):
    path = form.saved(tmp_path, x=filled((30, 3)))
    reader = form.reader
    assert reader.describe(path).rows == 30
    os.truncate(path, os.path.getsize(path) * 2 // 3)
    with names(path), bad_file_errors(path):
        reader.read(path, 0, 30)
