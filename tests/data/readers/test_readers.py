import builtins
import errno
import gc
import os
import pickle
import re
import resource
import sys
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import h5py
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compss_train import BadFileError, DistributedTrainer, FileDataset, PartialShuffleSampler
from compss_train.data.layout import Field, UnfitFileError
from compss_train.data.readers import (
    READERS,
    CustomReader,
    Hdf5Reader,
    NpyReader,
    NpzReader,
    Reader,
    TorchReader,
    as_reader,
)
from compss_train.data.reading import layout_of, naming
from compss_train.data.stretches import Stretch
from tests.data.readers.formats import (
    FORMATS,
    NAMED,
    OWN,
    Bomb,
    npz_bytes,
    read_bin,
    read_file,
    save_hdf5,
    with_header,
)

DTYPES = [np.uint8, np.int64, np.float32, np.float16, np.bool_, np.complex64]
SHAPES = [(5,), (5, 3), (5, 2, 2), (1,), (4, 0)]


def in_every(formats):
    return pytest.mark.parametrize("form", formats.values(), ids=formats)


def names(path, reason=""):
    """Expect an error that names the file."""
    return pytest.raises(BadFileError, match=f"(?s)^{re.escape(str(path))} .*{reason}")


def filled(shape, dtype=np.float32):
    return (np.arange(np.prod(shape)) % 7 * 0.75 + 0.5).reshape(shape).astype(dtype)


def same(read, saved):
    read = read.numpy() if isinstance(read, torch.Tensor) else read
    np.testing.assert_array_equal(read, saved, strict=True)


# What every format does.


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
def test_arrays_that_are_not_chosen_may_be_as_they_like(tmp_path, form):
    path = form.saved(tmp_path, x=filled((5, 2)), y=np.arange(3), z=np.zeros(0))
    if form.function is None:
        same(read_file(path, keys=["x"])["x"], filled((5, 2)))
    with names(path, "holds arrays of different lengths: .*'y' 3.*; each needs a row a sample"):
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
    path = form.saved(tmp_path, x=np.zeros((0, 3)))
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with names(path):
            FileDataset([path], form.function)
    gc.collect()  # errors and the frames that they come from refer to each other
    assert len(os.listdir("/proc/self/fd")) == len(before)


# Files that hold no samples, or nothing that is one.


@in_every(FORMATS)
def test_a_file_without_rows_is_an_error(tmp_path, form):
    path = form.saved(tmp_path, x=np.zeros((0, 3)))
    with names(path, "holds no samples"):
        FileDataset([path], form.function)


@in_every(OWN)
def test_a_single_value_is_an_error(tmp_path, form):
    path = form.saved(tmp_path, x=np.float32(3))
    with names(path, "holds a single value in 'x', no row a sample"):
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
    with names(form.path(tmp_path), "does not exist"), naming(part.files[0]):
        part.reader.read(part.files[0], 0, 3)


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


# Truncated files.


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
    with names(path), naming(path):
        reader.read(path, 0, 30)


# Counting reads headers, not data.


def overwritten(path, array):
    """Overwrite the array's bytes in the file with others."""
    with open(path, "r+b") as file:
        at = file.read().find(array.tobytes())
        assert at > 0
        file.seek(at)
        file.write(bytes(255 - byte for byte in array.tobytes()))


@in_every({name: form for name, form in OWN.items() if name in ("npz", "npy", "pt", "hdf5")})
def test_counting_does_not_see_the_data(tmp_path, form):
    path = form.saved(tmp_path, x=(array := filled((3_000, 3))))
    before = form.reader.describe(path)
    overwritten(path, array)
    assert form.reader.describe(path) == before


def test_a_checksum_tells_of_data_in_an_npz_that_changed(tmp_path):
    np.savez(tmp_path / "f.npz", x=(array := filled((3_000, 3))), y=np.arange(3_000))
    overwritten(path := str(tmp_path / "f.npz"), array)
    dataset = FileDataset([path])
    assert dataset.number_samples == 3_000
    with names(path, r"is corrupt: 'x\.npy' in it is not what its checksum says"):
        read_file(path)
    same(read_file(path, keys=["y"])["y"], np.arange(3_000))


def test_a_checksum_tells_of_data_in_a_compressed_npz_that_changed(tmp_path):
    array = np.random.default_rng(0).integers(0, 2**62, 20_000)
    np.savez_compressed(path := str(tmp_path / "f.npz"), x=array)
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) - 2_000)
        file.write(bytes(64))
    assert FileDataset([path]).sizes == (20_000,)
    with names(path):
        read_file(path)


class Counted(zipfile.ZipExtFile):
    total = 0

    def read(self, n=-1):
        got = super().read(n)
        Counted.total += len(got)
        return got


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_counting_an_npz_takes_a_few_bytes_of_each_array(tmp_path, monkeypatch, save):
    save(tmp_path / "f.npz", x=np.zeros((1_000, 1_000)), y=np.arange(1_000))
    monkeypatch.setattr(zipfile, "ZipExtFile", Counted)
    monkeypatch.setattr(Counted, "total", 0)
    assert NpzReader().describe(str(tmp_path / "f.npz")).rows == 1_000
    assert 0 < Counted.total < 10_000


def test_an_npy_of_many_times_the_memory_is_counted_and_read_by_rows(tmp_path):
    with_header(tmp_path / "f.npy", (2**30, 32), b"")
    os.truncate(tmp_path / "f.npy", (tmp_path / "f.npy").stat().st_size + 2**38)
    reader = NpyReader()
    assert reader.describe(str(tmp_path / "f.npy")).rows == 2**30
    same(reader.read(str(tmp_path / "f.npy"), 2**29, 2**29 + 2)[0]["x"], np.zeros((2, 32)))


def test_an_hdf5_data_set_of_many_times_the_memory_is_counted_and_read_by_rows(tmp_path):
    with h5py.File(path := str(tmp_path / "f.h5"), "w") as file:
        file.create_dataset("x", (2**34, 32), np.float64, chunks=(4, 32))[2**33] = 7
    reader = Hdf5Reader()
    assert reader.describe(path).rows == 2**34
    assert reader.read(path, 2**33 - 1, 2**33 + 1)[0]["x"][:, 0].tolist() == [0, 7]


def test_a_pt_file_is_mapped_to_be_counted_and_read(tmp_path, monkeypatch):
    torch.save({"x": torch.arange(10)}, path := str(tmp_path / "f.pt"))
    asked, load = [], torch.load
    monkeypatch.setattr(torch, "load", lambda *args, **options: asked.append(options) or load(*args, **options))
    TorchReader().describe(path)
    TorchReader().read(path, 0, 2)
    assert len(asked) == 2
    assert all(options["mmap"] and options["weights_only"] for options in asked)


# Bytes that flip in an .npz.

X, Y = filled((7, 3)), np.arange(7) * 1_000_003
STORED, COMPRESSED = (npz_bytes(save, x=X, y=Y) for save in (np.savez, np.savez_compressed))


def reads_right_or_fails(path, content, **options):
    with open(path, "wb") as file:
        file.write(content)
    dataset = FileDataset([good := f"{path}.good.npz", str(path)], files_len={good: 7, str(path): 7}, **options)
    part = dataset.part([1])
    from_headers = NpzReader().describe(good, dataset.keys).layout
    try:
        arrays = part.read(Stretch(1, 0, 7), from_headers, good)
    except BadFileError as error:
        named = error.file
    else:
        named = str(path)
        assert set(arrays) == set(dataset.keys or "xy")
        for key, array in arrays.items():
            same(array, {"x": X, "y": Y}[key])
    assert named == str(path)


@pytest.fixture(scope="module")
def flipped(tmp_path_factory):
    path = tmp_path_factory.mktemp("flipped") / "f.npz"
    with open(f"{path}.good.npz", "wb") as file:
        file.write(STORED)
    return path


@pytest.mark.parametrize("content", [STORED, COMPRESSED], ids=["stored", "compressed"])
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
def test_a_byte_of_an_npz_that_flips_is_an_error_or_changes_nothing(flipped, content, place, change):
    changed = bytearray(content)
    changed[int(place * len(content))] ^= change
    reads_right_or_fails(flipped, changed)


@pytest.mark.parametrize("content", [STORED, COMPRESSED], ids=["stored", "compressed"])
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.floats(0, 1, exclude_max=True), noise=st.binary(min_size=1, max_size=64))
def test_noise_in_an_npz_is_an_error_or_changes_nothing(flipped, content, start, noise):
    at = int(start * len(content))
    reads_right_or_fails(flipped, content[:at] + noise + content[at + len(noise) :])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_array_that_got_anothers_name_is_not_taken_for_it(flipped, save):
    content = npz_bytes(save, z=Y, x=Y[::-1])
    in_directory = content.rfind(b"x.npy")
    renamed = content[:in_directory] + b"y" + content[in_directory + 1 :]
    reads_right_or_fails(flipped, renamed, keys=["y"])
    with names(flipped, "File name in directory .* differ"):
        FileDataset(flipped)
    with names(flipped, "File name in directory .* differ"), naming(str(flipped)):
        NpzReader().read(str(flipped), 0, 7, ["y"])


@pytest.mark.parametrize("again", ["x.npy", "x"])
def test_a_name_that_an_npz_holds_twice_is_an_error_whichever_array_is_read(tmp_path, again):
    np.savez(path := tmp_path / "f.npz", x=X, y=Y)
    with zipfile.ZipFile(path) as archive:
        content = archive.read("x.npy")
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")  # zipfile's own
        archive.writestr(again, content)
    for keys in (None, ["x"], ["y"]):
        with names(path, "is corrupt: it names an array twice"):
            FileDataset(path, keys=keys)
        with names(path, "is corrupt: it names an array twice"), naming(str(path)):
            NpzReader().read(str(path), 0, 7, keys)


# .npz and .npy


WRONG_SHAPES = ["(-2, 3)", "(3, 3)", "(99999999999999, 3)", "(2, 3, -1)"]


@pytest.mark.parametrize("shape", WRONG_SHAPES)
def test_an_npy_with_a_shape_that_its_data_is_not_of_is_an_error_before_data_is_read(tmp_path, shape):
    with_header(path := tmp_path / "f.npy", shape, bytes(48))
    with names(path):
        FileDataset([path])


@pytest.mark.parametrize("shape", [*WRONG_SHAPES, "(1, 3)", "(2, 2)", "(2, 3, 2)", "()"])
def test_an_npz_with_a_shape_that_its_data_is_not_of_is_an_error_before_data_is_read(tmp_path, shape):
    with_header(path := tmp_path / "f.npz", shape, bytes(48))
    with names(path):
        FileDataset([path])


@pytest.mark.parametrize("shape", ["(3, 3)", "(99999999999999, 3)", "(1, 3)"])
def test_an_npz_with_a_shape_that_its_data_is_not_of_is_an_error_when_it_is_read(tmp_path, shape):
    with_header(path := tmp_path / "f.npz", shape, bytes(48))
    with names(path):
        read_file(path)


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("name", ["f.npz", "f.npy"])
def test_both_versions_of_numpys_headers_are_read(tmp_path, name, version):
    with_header(path := tmp_path / name, (2, 3), np.arange(6.0).tobytes(), version=version)
    same(read_file(path)["x"], np.arange(6.0).reshape(2, 3))


def test_another_version_of_numpys_headers_is_an_error(tmp_path):
    with_header(path := tmp_path / "f.npz", (2, 3), bytes(48), version=(3, 0))
    with names(path, r"version \(3, 0\) of numpy's format; 1\.0 and 2\.0 are read"):
        FileDataset([path])


def test_a_header_of_some_length_is_read(tmp_path):
    dtype = np.dtype([(f"a field that has a rather long name {i}", np.uint8) for i in range(150)])
    np.savez(path := str(tmp_path / "f.npz"), x=np.zeros(3, dtype))
    assert NpzReader().describe(path).rows == 3
    assert NpzReader().read(path, 0, 3)[0]["x"].dtype == dtype


def test_an_npz_with_something_other_than_arrays_is_an_error(tmp_path):
    np.savez(path := tmp_path / "f.npz", x=X)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("readme.txt", "seven rows")
    with names(path):
        FileDataset([path])
    same(read_file(path, keys=["x"])["x"], X)


def test_an_npz_without_names_has_numpys(tmp_path):
    np.savez(tmp_path / "f.npz", X, Y)
    assert list(read_file(tmp_path / "f.npz")) == ["arr_0", "arr_1"]


def test_an_array_that_is_called_like_a_file_keeps_its_name(tmp_path):
    np.savez(tmp_path / "f.npz", **{"x.npy": X, "x": X + 1})
    arrays = read_file(tmp_path / "f.npz")
    same(arrays["x"], X + 1)
    same(arrays["x.npy"], X)


def test_an_npz_of_any_compression_is_read(tmp_path):
    np.savez(tmp_path / "plain.npz", x=X, y=Y)
    for kind in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(tmp_path / "plain.npz") as plain, zipfile.ZipFile(tmp_path / "f.npz", "w", kind) as to:
            for member in plain.namelist():
                to.writestr(member, plain.read(member))
        same(read_file(tmp_path / "f.npz")["y"], Y)


def test_an_npz_that_is_larger_than_one_read_is_read_whole(tmp_path, monkeypatch):
    np.savez(path := str(tmp_path / "f.npz"), x=X)
    opened = builtins.open

    class Slow:
        """Gives seven bytes at a time, as the kernel gives 2 GiB."""

        def __init__(self, file):
            self.file = file

        def __getattr__(self, name):
            return getattr(self.file, name)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def readinto(self, data):
            return self.file.readinto(memoryview(data)[:7])

    monkeypatch.setattr(builtins, "open", lambda *args, **options: Slow(opened(*args, **options)), raising=True)
    arrays, _ = NpzReader().read(path, 0, 7)
    monkeypatch.undo()
    same(arrays["x"], X)


def test_the_array_of_an_npy_is_called_x_and_has_its_own_memory(tmp_path):
    np.save(tmp_path / "f.npy", X)
    array = NpyReader().read(str(tmp_path / "f.npy"), 2, 5)[0]["x"]
    assert type(array) is np.ndarray
    assert array.flags.c_contiguous
    assert array.flags.owndata
    assert array.flags.writeable


@pytest.mark.parametrize("content", [STORED, b"PK\x03\x04" + bytes(99)], ids=["whole", "broken"])
def test_an_npz_under_the_name_of_an_npy_is_an_error_that_leaves_nothing_open(tmp_path, content):
    (tmp_path / "f.npy").write_bytes(content)
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with names(tmp_path / "f.npy"):
            FileDataset([tmp_path / "f.npy"])
        gc.collect()
    assert not caught


# Pickles


def bombs(folder):
    box = np.array([Bomb(folder / "boom")] * 3, dtype=object)
    fields = np.zeros(3, [("a", "i4"), ("b", object)])
    fields["b"] = box
    for number, array in enumerate((box, fields)):
        np.savez(folder / f"{number}.npz", x=np.arange(3), y=array)
        np.savez_compressed(folder / f"{number}c.npz", x=np.arange(3), y=array)
        np.save(folder / f"{number}.npy", array)
    (folder / "pickle.npy").write_bytes(pickle.dumps(box))
    (folder / "pickle.npz").write_bytes(pickle.dumps({"x": box}))
    (folder / "pickle.pt").write_bytes(pickle.dumps({"x": box}))
    torch.save({"x": torch.arange(3), "y": Bomb(folder / "boom")}, folder / "dict.pt")
    torch.save((torch.arange(3), Bomb(folder / "boom")), folder / "pair.pt")
    torch.save(Bomb(folder / "boom"), folder / "alone.pth")
    old = {"_use_new_zipfile_serialization": False}
    torch.save({"x": Bomb(folder / "boom")}, folder / "old.pt", **old)


def test_pickles_are_refused_and_not_executed(tmp_path):
    bombs(tmp_path)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 13
    for path in files:
        with names(path):
            FileDataset([path])
        with names(path), naming(str(path)):
            as_reader(None, [str(path)]).read(str(path), 0, 3)
    assert not (tmp_path / "boom").exists()


def test_the_bomb_of_these_tests_goes_off(tmp_path):
    pickle.loads(pickle.dumps(Bomb(tmp_path / "boom")))
    assert (tmp_path / "boom").exists()


@pytest.mark.parametrize("name", ["0.npz", "1.npz", "0c.npz"])
def test_an_array_of_objects_is_an_error_that_says_which(tmp_path, name):
    bombs(tmp_path)
    with names(tmp_path / name, "holds Python objects in 'y'"):
        FileDataset([tmp_path / name])
    with pytest.raises(UnfitFileError, match="holds Python objects in 'y'"):
        NpzReader().read(str(tmp_path / name), 0, 3)
    same(read_file(tmp_path / name, keys=["x"])["x"], np.arange(3))


def test_a_pt_of_other_objects_is_an_error_that_says_what_to_save(tmp_path):
    bombs(tmp_path)
    with names(tmp_path / "dict.pt", r"does not hold tensors alone; other objects \(pickles\) are not read$"):
        FileDataset([tmp_path / "dict.pt"])


# .pt


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.uint8, torch.bool, torch.complex64, torch.int16], ids=str
)
def test_tensors_stay_tensors_of_their_dtype(tmp_path, dtype):
    tensor = torch.arange(10).reshape(5, 2).to(dtype)
    torch.save({"x": tensor}, tmp_path / "f.pt")
    read = read_file(tmp_path / "f.pt")["x"]
    assert read.dtype is dtype
    assert torch.equal(read, tensor)
    assert FileDataset(tmp_path / "f.pt").layout == {"x": Field(str(dtype), (2,))}


@pytest.mark.parametrize("of", [tuple, list])
def test_a_tensor_is_x_and_a_pair_x_and_y(tmp_path, of):
    x, y = torch.arange(6.0).reshape(3, 2), torch.arange(3)
    for number, saved in enumerate((x, of((x,)), of((x, y)))):
        torch.save(saved, path := tmp_path / f"{number}.pt")
        arrays = read_file(path)
        assert list(arrays) == ["x", "y"][: len(arrays)]
        assert len(arrays) == (len(saved) if isinstance(saved, of) else 1)
        assert torch.equal(arrays["x"], x)
        assert torch.equal(arrays.get("y", y), y)


@pytest.mark.parametrize(
    ("saved", "reason"),
    [
        ([torch.zeros(3)] * 3, "holds 3 tensors without names; save a dict of tensors"),
        (None, "holds a NoneType under 'x'"),
        ({"x": torch.zeros(3), "lr": 0.1}, "holds a float under 'lr'; name the tensors in keys="),
        ({"x": {"y": torch.zeros(3)}}, "holds a dict under 'x'"),
        ({"x": [0, 1]}, "holds a list under 'x'"),
        ({1: torch.zeros(3)}, "holds a Tensor under 1"),
        ({}, "holds no arrays"),
        ((), "holds no arrays"),
        ((torch.zeros(3), 3), "holds a int under 'y'"),
        (torch.tensor(3.0), "holds a single value in 'x'"),
        ((torch.zeros(3), torch.zeros(4)), "holds arrays of different lengths: 'x' 3, 'y' 4"),
    ],
)
def test_a_pt_without_rows_by_name_is_an_error(tmp_path, saved, reason):
    torch.save(saved, tmp_path / "f.pt")
    with names(tmp_path / "f.pt", reason):
        FileDataset(tmp_path / "f.pt")


def test_parameters_views_and_expanded_tensors_are_read_as_plain_ones(tmp_path):
    base = torch.arange(24.0).reshape(6, 4)
    saved = {
        "parameter": torch.nn.Parameter(base.clone()),
        "view": base[:, 1:3],
        "transposed": torch.arange(24.0).reshape(4, 6).T,
        "expanded": torch.ones(1, 2).expand(6, 2),
        "conjugate": torch.full((6,), 1 + 2j).conj(),
    }
    torch.save(saved, tmp_path / "f.pt")
    for key, read in TorchReader().read(str(tmp_path / "f.pt"), 1, 5)[0].items():
        assert type(read) is torch.Tensor
        assert not read.requires_grad
        assert read.is_contiguous()
        assert torch.equal(read, saved[key][1:5])


def test_rows_of_a_pt_take_only_their_own_memory(tmp_path):
    torch.save({"x": torch.zeros(1_000, 8)}, tmp_path / "f.pt")
    rows = TorchReader().read(str(tmp_path / "f.pt"), 0, 3)[0]["x"]
    assert rows.untyped_storage().nbytes() == rows.nbytes


def test_a_pt_in_the_format_of_before_mapping_is_an_error(tmp_path):
    torch.save({"x": torch.zeros(3)}, tmp_path / "f.pt", _use_new_zipfile_serialization=False)
    with names(tmp_path / "f.pt", "is of torch's old format; load it, and save it again with torch.save$"):
        FileDataset(tmp_path / "f.pt")


def no_plain_tensors():
    yield torch.zeros(3, 2, device="meta")
    yield torch.eye(3).to_sparse()
    yield torch.eye(3).to_sparse_csr()
    yield torch.quantize_per_tensor(torch.ones(3, 2), 0.1, 0, torch.qint8)


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:TypedStorage", "ignore:torch.quantize_per_tensor")
def test_tensors_without_plain_data_are_an_error_before_they_are_read_unless_others_are_named(tmp_path):
    path = tmp_path / "f.pt"
    for tensor in no_plain_tensors():
        torch.save({"x": torch.from_numpy(X[:3]), "z": tensor}, path)
        with names(path, "holds no plain tensor under 'z'; save dense ones that have data$"):
            FileDataset(path)
        same(read_file(path, keys=["x"])["x"], X[:3])


def test_entries_of_a_pt_beside_the_tensors_that_are_named_may_be_as_they_like(tmp_path):
    others = {"lr": 0.1, "note": "text", "nested": {"z": [1, 2]}, 3: torch.zeros(2), "scalar": torch.tensor(3.0)}
    torch.save({"x": torch.from_numpy(X), "y": torch.from_numpy(Y), **others}, path := tmp_path / "f.pt")
    arrays = read_file(path, keys=["y", "x"])
    assert list(arrays) == ["y", "x"]
    same(arrays["x"], X)
    with names(path, "name the tensors in keys="):
        FileDataset(path)
    with names(path, "holds a dict under 'nested'; name the tensors in keys="):
        FileDataset(path, keys=["x", "nested"])


# HDF5


def test_data_sets_in_groups_are_called_by_their_path(tmp_path):
    save_hdf5(path := str(tmp_path / "f.h5"), **{"a/b/x": X, "y": Y})
    arrays = read_file(path)
    assert set(arrays) == {"a/b/x", "y"}
    same(arrays["a/b/x"], X)


def test_compressed_data_sets_are_read(tmp_path):
    with h5py.File(path := str(tmp_path / "f.h5"), "w") as file:
        file.create_dataset("x", data=X, compression="gzip", shuffle=True, fletcher32=True)
    same(read_file(path)["x"], X)


def test_the_checksum_of_a_data_set_that_has_one_is_checked(tmp_path):
    with h5py.File(path := str(tmp_path / "f.h5"), "w") as file:
        file.create_dataset("x", data=X, fletcher32=True)
    overwritten(path, X)
    assert FileDataset(path).sizes == (7,)
    with names(path):
        read_file(path)


def test_a_file_is_closed_again(tmp_path):
    save_hdf5(path := str(tmp_path / "f.h5"), x=X)
    read_file(path)
    with h5py.File(path, "r+") as file:  # which HDF5 would not open while someone reads it
        file["x"][0] = 0


def test_strings_in_hdf5_are_an_error(tmp_path):
    save_hdf5(path := str(tmp_path / "f.h5"), x=["a", "b"])
    with names(path, "holds Python objects in 'x'"):
        FileDataset(path)


def test_a_data_set_without_a_shape_is_an_error(tmp_path):
    with h5py.File(path := str(tmp_path / "f.h5"), "w") as file:
        file["x"] = h5py.Empty("f4")
    with names(path):
        FileDataset(path)


def test_named_types_and_data_sets_without_a_shape_are_no_arrays(tmp_path):
    save_hdf5(path := str(tmp_path / "f.h5"), x=X)
    with h5py.File(path, "a") as file:
        file["kind"] = np.dtype("f4")
        file["group/kind"] = np.dtype("i4")
        file["nothing"] = h5py.Empty("f4")
    assert list(read_file(path)) == ["x"]
    for key in ("kind", "nothing", "group"):
        with names(path, f"has no array '{key}'; it has 'x'"):
            FileDataset(path, keys=[key])


def test_links_at_the_top_of_an_hdf5_file_are_followed_and_broken_ones_are_no_arrays(tmp_path):
    save_hdf5(other := str(tmp_path / "other.h5"), **{"a/z": X + 1})
    save_hdf5(path := str(tmp_path / "f.h5"), **{"a/x": X})
    with h5py.File(path, "a") as file:
        file["soft"] = h5py.SoftLink("/a/x")
        file["hard"] = file["a/x"]
        file["external"] = h5py.ExternalLink("other.h5", "/a/z")
        file["broken"] = h5py.SoftLink("/nowhere")
        file["gone"] = h5py.ExternalLink("none.h5", "/z")
        file["group"] = h5py.SoftLink("/a")
    arrays = read_file(path, keys=["soft", "hard", "external"])
    for key, expected in {"soft": X, "hard": X, "external": X + 1}.items():
        same(arrays[key], expected)
    assert {"soft", "hard", "external"} < set(read_file(path)) <= {"soft", "hard", "external", "a/x"}
    os.remove(other)
    with names(path, "has no array 'external'"):
        read_file(path, keys=["external"])


def test_without_h5py_the_error_names_the_extra(tmp_path, monkeypatch):
    save_hdf5(path := str(tmp_path / "f.h5"), x=X)
    monkeypatch.setitem(sys.modules, "h5py", None)
    for on_bad_file in ("raise", "skip"):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'compss_train\[hdf5\]'") as caught:
            FileDataset(path, on_bad_file=on_bad_file)
        assert caught.value.name == "h5py"


# What torch cannot hold

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
def test_an_array_that_torch_cannot_hold_is_an_error_that_names_file_and_array_before_training(
    tmp_path, kind, form
):
    form = FORMATS[form]
    path = form.saved(tmp_path, x=UNFIT[kind])
    dataset = FileDataset(path, form.function)  # counting needs no torch
    reason = "holds .* in 'x', which torch cannot hold; convert it, or leave it out by naming .* in keys=$"
    with names(path, reason):
        dataset.part([0]).read(Stretch(0, 0, 3))
    with names(path, reason):
        PartialShuffleSampler(dataset)
    trainer = DistributedTrainer(1, engine="serial")
    trainer.build(torch.nn.Linear(2, 1), {"optimizer": "sgd", "lr": 0.1}, "mse")
    for use in (partial(trainer.fit, num_epochs=1, batch_size=3), trainer.evaluate):
        with names(path, reason):
            use(FileDataset(path, form.function, y=None))


@pytest.mark.parametrize("kind", UNFIT)
def test_an_array_that_torch_cannot_hold_does_no_harm_where_it_is_not_read(tmp_path, kind):
    np.savez(path := tmp_path / "f.npz", x=X[:3], z=UNFIT[kind])
    same(read_file(path, keys=["x"])["x"], X[:3])
    (batch,) = PartialShuffleSampler(FileDataset(path, keys=["x"]), batch_size=3)
    assert list(batch) == ["x"]
    with names(path, "holds .* in 'z', which torch cannot hold"):
        PartialShuffleSampler(FileDataset(path))


# Errors of the machine


@in_every(OWN)
def test_too_many_open_files_are_no_fault_of_a_file_which_is_not_skipped(tmp_path, form):
    path = form.saved(tmp_path, x=X)
    dataset = FileDataset(path, on_bad_file="skip")
    (soft, hard), taken = resource.getrlimit(resource.RLIMIT_NOFILE), []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for use in (
            lambda: FileDataset(path, on_bad_file="skip"),
            lambda: dataset.part([0]).read(Stretch(0, 0, 7)),
        ):
            with pytest.raises(OSError) as caught:
                use()
            assert caught.value.errno == errno.EMFILE
            assert caught.value.__notes__ == [f"while {path} was read"]
    finally:
        for number in taken:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    same(read_file(path)["x"], X)


# The user's own readers


class Shifted(NpzReader):
    """Gives other rows than it was asked for."""

    def __init__(self, rows):
        self.rows = rows

    def read(self, path, start, stop, keys=None):
        arrays, rows = super().read(path, 0, 7, keys)
        return {**arrays, "y": arrays["y"][: self.rows]}, rows


@pytest.mark.parametrize("rows", [0, 2, 4, 7])
def test_a_reader_that_gives_other_rows_than_it_was_asked_for_is_an_error_that_names_the_file(tmp_path, rows):
    np.savez(path := tmp_path / "f.npz", x=X[:, 0], y=Y)
    part = FileDataset(path, Shifted(rows), keys=["y"]).part([0])
    with names(path, "was read wrongly: 'y' has not the rows 2 to 5"):
        part.read(Stretch(0, 2, 5))


@pytest.mark.parametrize(
    "returned",
    [None, 3.0, "3", {}, ({"x": X}, 7), True, np.bool_(True), [7], np.zeros(1), torch.tensor(7)],
    ids=repr,
)
def test_a_number_that_is_no_integer_is_an_error(tmp_path, returned):
    path = tmp_path / "f"
    path.touch()
    with names(path, f"has no number of samples: the reader returned a {type(returned).__name__}, not an integer"):
        FileDataset(path, lambda filename, get_data=False: returned)


@pytest.mark.parametrize("number", [0, -1, np.int64(-5)])
def test_a_number_below_one_is_an_error(tmp_path, number):
    path = tmp_path / "f"
    path.write_text("content")
    with names(path, f"holds no samples: the reader returned {number}"):
        FileDataset(path, lambda filename, get_data=False: number)


@pytest.mark.parametrize("number", [7, np.int64(7), np.uint8(7)])
def test_any_integer_is_a_number(tmp_path, number):
    (tmp_path / "f").touch()
    dataset = FileDataset(tmp_path / "f", lambda filename, get_data=False: number)
    assert dataset.sizes == (7,)
    assert all(type(size) is int for size in dataset.sizes)
    assert dataset.layout is None


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (None, r"must return \(dict of arrays, number\)"),
        ({"x": X}, r"must return \(dict of arrays, number\)"),
        (7, r"must return \(dict of arrays, number\)"),
        ((X, 7), r"must return \(dict of arrays, number\)"),
        (({"x": X}, 7, 7), r"must return \(dict of arrays, number\)"),
        ([{"x": X}, 7], r"must return \(dict of arrays, number\)"),
        (({"x": X, "y": Y[:5]}, 7), "different lengths: 'x' 7, 'y' 5"),
        (({"x": X}, 6), "has 7 rows in its arrays, but the reader says 6"),
        (({"x": X}, None), "has 7 rows in its arrays, but the reader says None"),
        (({"x": X[:6]}, 6), "has 6 samples, 7 were expected"),
        (({}, 7), "holds no arrays"),
        (({"x": X[:0]}, 0), "holds no samples"),
        (({3: X}, 7), "has an array under 3; names must be strings"),
        (({"x": 3.0}, 7), "holds a single value in 'x'"),
        (({"x": torch.tensor(3)}, 7), "holds a single value in 'x'"),
        (({"x": None}, 7), "holds a single value in 'x'"),
        (({"x": [object()] * 7}, 7), "holds Python objects in 'x'"),
        (({"x": [[1], [2, 3]] * 3}, 7), "cannot be read: ValueError"),
    ],
)
def test_what_is_not_arrays_and_their_number_is_an_error(tmp_path, returned, reason):
    path = tmp_path / "f"
    path.write_text("content")
    with names(path, reason):
        read_file(path, lambda filename, get_data=False: returned if get_data else 7)


def test_tensors_and_lists_are_arrays_too(tmp_path):
    (tmp_path / "f").touch()
    returned = {"t": torch.ones(3, requires_grad=True), "list": [[1, 2]] * 3, "n": np.arange(3)}
    arrays = read_file(tmp_path / "f", lambda filename, get_data=False: (returned, 3) if get_data else 3)
    assert isinstance(arrays["t"], torch.Tensor)
    assert not arrays["t"].requires_grad
    assert arrays["list"].tolist() == [[1, 2]] * 3
    same(arrays["n"], np.arange(3))


@pytest.mark.parametrize("fails", [False, True], ids=["counting", "reading"])
@pytest.mark.parametrize("kind", [ValueError, OSError, ZeroDivisionError, StopIteration])
def test_what_a_reader_raises_is_the_cause_of_an_error_that_names_the_file(tmp_path, kind, fails):
    def reader(filename, get_data=False):
        if get_data == fails:
            raise error
        return 3

    (tmp_path / "f").write_text("content")
    error = kind("boom")
    with names(tmp_path / "f", f"cannot be read: {kind.__name__}: boom") as caught:
        read_file(tmp_path / "f", reader)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [MemoryError("full"), KeyboardInterrupt()])
def test_lack_of_memory_and_interrupts_are_no_fault_of_the_file(tmp_path, error):
    def reader(filename, get_data=False):
        if get_data:
            raise error
        return 3

    (tmp_path / "f").touch()
    with pytest.raises(type(error)) as caught:
        read_file(tmp_path / "f", reader)
    assert caught.value is error


def test_lack_of_memory_while_counting_is_not_skipped(tmp_path):
    def reader(filename, get_data=False):
        raise MemoryError("full")

    (tmp_path / "f").touch()
    with pytest.raises(MemoryError):
        FileDataset(tmp_path / "f", reader, on_bad_file="skip")


def test_names_of_another_kind_reach_the_reader_as_they_are(tmp_path, monkeypatch):
    asked = []

    def reader(filename, get_data=False):
        asked.append((filename, get_data))
        return ({"x": X}, 7) if get_data else 7

    monkeypatch.chdir(tmp_path)
    same(read_file("store://bucket/f", reader)["x"], X)
    assert asked == [("store://bucket/f", False), ("store://bucket/f", True)]


def test_a_built_in_reader_without_a_store_says_that_the_file_does_not_exist():
    with names("store://bucket/f.npz", "does not exist"):
        FileDataset(["store://bucket/f.npz"])


def test_a_reader_gets_absolute_names(tmp_path, monkeypatch):
    asked = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").touch()
    FileDataset("f", lambda filename, get_data=False: asked.append(filename) or 3)
    assert asked == [str(tmp_path / "f")]


def test_get_data_is_passed_by_name(tmp_path):
    class Own:
        def __call__(self, filename, *, get_data):
            return ({"x": X}, 7) if get_data else 7

    (tmp_path / "f").touch()
    same(read_file(tmp_path / "f", Own())["x"], X)


# Which reader


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("change", [str, str.upper, lambda suffix: f".backup{suffix}"])
def test_the_end_of_a_name_tells_the_reader(suffix, change):
    assert type(as_reader(None, [f"a/b{change(suffix)}", f"c{suffix}"])) is READERS[suffix]


def test_ends_of_the_same_format_go_together():
    assert type(as_reader(None, ["a.pt", "b.pth"])) is TorchReader
    assert type(as_reader(None, ["a.h5", "b.hdf5", "c.H5"])) is Hdf5Reader


@pytest.mark.parametrize(
    "files", [["a.npz", "b.npy"], ["a.pt", "b.h5"], ["a.npz", "b.csv"], ["a.csv"], ["a"], [".npz"], ["npz"], []]
)
def test_ends_that_are_unknown_or_differ_are_errors(files):
    with pytest.raises(ValueError, match=r"give files of one kind, \.npz, .*, or a reader"):
        as_reader(None, files)


def test_a_reader_that_is_given_is_taken_for_any_names(tmp_path):
    reader = NpzReader()
    assert as_reader(reader, ["a.csv", "b"]) is reader
    own = as_reader(read_bin, ["a.csv", "b.npz"])
    assert isinstance(own, CustomReader)
    assert isinstance(own, Reader)
    assert own.function is read_bin
    np.savez(tmp_path / "f.npz", x=X)
    (tmp_path / "f.npz").rename(tmp_path / "f.dat")
    same(read_file(tmp_path / "f.dat", reader)["x"], X)
    same(read_file(tmp_path / "f.dat", NpzReader)["x"], X)  # the class does, too


@pytest.mark.parametrize("reader", [3, "npz", {"x": 1}])
def test_what_cannot_be_called_is_no_reader(reader):
    with pytest.raises(TypeError, match=r"give a function reader\(filename, get_data=False\), or None"):
        as_reader(reader, ["a.npz"])
