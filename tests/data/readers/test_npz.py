"""The readers of .npz and .npy files: flipped bytes, names, and rows of compressed arrays."""

import builtins
import gc
import warnings
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compss_train import BadFileError, FileDataset
from compss_train.data.order import RowRange
from compss_train.data.readers import NpyReader, NpzReader
from compss_train.data.reading import bad_file_errors
from tests.data.readers.checks import X, Y, names, same
from tests.data.readers.formats import npz_bytes, read_file, with_header

STORED, COMPRESSED = (npz_bytes(save, x=X, y=Y) for save in (np.savez, np.savez_compressed))


def reads_right_or_fails(path, content, **options):
    with open(path, "wb") as file:
        file.write(content)
    dataset = FileDataset([good := f"{path}.good.npz", str(path)], files_len={good: 7, str(path): 7}, **options)
    part = dataset.part([1])
    from_headers = NpzReader().describe(good, dataset.keys).layout
    try:
        arrays = replace(part, layout=from_headers, reference=good).read(RowRange(1, 0, 7))
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
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
def test_a_byte_of_an_npz_that_flips_is_an_error_or_changes_nothing(flipped, content, place, change):
    changed = bytearray(content)
    changed[int(place * len(content))] ^= change
    reads_right_or_fails(flipped, changed)


@pytest.mark.parametrize("content", [STORED, COMPRESSED], ids=["stored", "compressed"])
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    with names(flipped, "File name in directory .* differ"), bad_file_errors(str(flipped)):
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
        with names(path, "is corrupt: it contains an array twice"):
            FileDataset(path, keys=keys)
        with names(path, "is corrupt: it contains an array twice"), bad_file_errors(str(path)):
            NpzReader().read(str(path), 0, 7, keys)


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
        """Returns seven bytes at a time, as the kernel returns at most 2 GiB."""

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
