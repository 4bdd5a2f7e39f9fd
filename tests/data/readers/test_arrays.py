"""The readers of .npz, .npy and .pt files: damage, pickles, names, and headers that are read without data."""

import builtins
import gc
import os
import pickle
import warnings
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compss_train import BadFileError, FileDataset
from compss_train.data.layout import Field, FileContentError
from compss_train.data.order import RowRange
from compss_train.data.readers import NpyReader, NpzReader, TorchReader, as_reader
from compss_train.data.reading import bad_file_errors
from tests.data.readers.checks import X, Y, filled, names, overwritten, same
from tests.data.readers.formats import Bomb, npz_bytes, read_file, with_header

STORED, COMPRESSED = (npz_bytes(save, x=X, y=Y) for save in (np.savez, np.savez_compressed))

# Damage


def reads_right_or_fails(path, content, **options):
    path.write_bytes(content)
    dataset = FileDataset([good := f"{path}.good.npz", str(path)], files_len={good: 7, str(path): 7}, **options)
    from_headers = NpzReader().describe(good, dataset.keys).layout
    part = replace(dataset.part([1]), layout=from_headers, reference=good)
    named = str(path)
    try:
        arrays = part.read(RowRange(1, 0, 7))
    except BadFileError as error:
        named = error.file
    else:
        assert set(arrays) == set(dataset.keys or "xy")
        for key, array in arrays.items():
            same(array, {"x": X, "y": Y}[key])
    assert named == str(path)


@pytest.fixture(scope="module")
def flipped(tmp_path_factory):
    path = tmp_path_factory.mktemp("flipped") / "f.npz"
    path.with_name("f.npz.good.npz").write_bytes(STORED)
    return path


@pytest.mark.parametrize("content", [STORED, COMPRESSED], ids=["stored", "compressed"])
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255) | st.binary(min_size=1, max_size=64))
def test_a_flipped_byte_or_noise_in_an_npz_fails_or_changes_nothing(flipped, content, place, change):
    at = int(place * len(content))
    noise = change if isinstance(change, bytes) else bytes([content[at] ^ change])
    reads_right_or_fails(flipped, content[:at] + noise + content[at + len(noise) :])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_array_that_got_anothers_name_is_not_taken_for_it(flipped, save):
    content = npz_bytes(save, z=Y, x=Y[::-1])
    in_directory = content.rfind(b"x.npy")
    renamed = content[:in_directory] + b"y" + content[in_directory + 1 :]
    reads_right_or_fails(flipped, renamed, keys=["y"])
    with names(flipped, "File name in directory .* differ"):
        FileDataset(flipped)


@pytest.mark.parametrize("again", ["x.npy", "x"])
def test_a_name_that_an_npz_holds_twice_is_an_error(tmp_path, again):
    np.savez(path := tmp_path / "f.npz", x=X, y=Y)
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")  # zipfile's own
        archive.writestr(again, archive.read("x.npy"))
    for keys in (None, ["x"], ["y"]):
        with names(path, "is corrupt: it contains an array twice"):
            FileDataset(path, keys=keys)
        with names(path, "is corrupt: it contains an array twice"), bad_file_errors(str(path)):
            NpzReader().read(str(path), 0, 7, keys)


def test_a_checksum_detects_changed_data_in_an_npz(tmp_path):
    np.savez(tmp_path / "f.npz", x=(array := filled((3_000, 3))), y=np.arange(3_000))
    overwritten(path := str(tmp_path / "f.npz"), array)
    assert FileDataset([path]).number_samples == 3_000
    with names(path, r"is corrupt: 'x\.npy' does not match its checksum"):
        read_file(path)
    same(read_file(path, keys=["y"])["y"], np.arange(3_000))


@pytest.mark.parametrize("name", ["f.npz", "f.npy"])
@pytest.mark.parametrize("shape", ["(-2, 3)", "(3, 3)", "(99999999999999, 3)", "(2, 3, -1)"])
def test_a_shape_that_its_data_is_not_of_is_an_error_before_data_is_read(tmp_path, name, shape):
    with_header(path := tmp_path / name, shape, bytes(48))
    with names(path):
        FileDataset([path])


@pytest.mark.parametrize("shape", ["(1, 3)", "(2, 2)", "(2, 3, 2)", "()"])
def test_an_npz_holds_exactly_the_data_of_its_shape(tmp_path, shape):
    with_header(path := tmp_path / "f.npz", shape, bytes(48))
    with names(path):
        FileDataset([path])
    with pytest.raises(FileContentError):
        NpzReader().read(str(path), 0, 2)


# What is read


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("name", ["f.npz", "f.npy"])
def test_both_versions_of_numpys_headers_are_read(tmp_path, name, version):
    with_header(path := tmp_path / name, (2, 3), np.arange(6.0).tobytes(), version=version)
    if version < (3, 0):
        same(read_file(path)["x"], np.arange(6.0).reshape(2, 3))
        return
    with names(path, r"version \(3, 0\) of numpy's format; 1\.0 and 2\.0 are read"):
        FileDataset([path])


def test_a_header_of_some_length_is_read(tmp_path):
    dtype = np.dtype([(f"a field that has a rather long name {i}", np.uint8) for i in range(150)])
    np.savez(path := str(tmp_path / "f.npz"), x=np.zeros(3, dtype))
    assert NpzReader().describe(path).rows == 3
    assert NpzReader().read(path, 0, 3)[0]["x"].dtype == dtype


def test_an_npz_may_have_numpys_names_and_those_of_files(tmp_path):
    np.savez(tmp_path / "f.npz", X, **{"x.npy": X, "x": X + 1})
    arrays = read_file(tmp_path / "f.npz")
    assert list(arrays) == ["x.npy", "x", "arr_0"]
    same(arrays["x"], X + 1)
    same(arrays["x.npy"], X)


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_npz_of_any_compression_is_read_beside_other_members(tmp_path, kind):
    np.savez(tmp_path / "plain.npz", x=X, y=Y)
    with zipfile.ZipFile(tmp_path / "plain.npz") as plain, zipfile.ZipFile(tmp_path / "f.npz", "w", kind) as to:
        for member in plain.namelist():
            to.writestr(member, plain.read(member))
        to.writestr("readme.txt", "seven rows")
    same(read_file(tmp_path / "f.npz", keys=["y"])["y"], Y)
    with names(tmp_path / "f.npz"):
        FileDataset([tmp_path / "f.npz"])


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


def test_an_npz_that_is_larger_than_one_read_is_read_whole(tmp_path, monkeypatch):
    np.savez(path := str(tmp_path / "f.npz"), x=X)
    opened = builtins.open
    monkeypatch.setattr(builtins, "open", lambda *args, **options: Slow(opened(*args, **options)))
    arrays, _ = NpzReader().read(path, 0, 7)
    monkeypatch.undo()
    same(arrays["x"], X)


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
    with_header(path := tmp_path / "f.npy", (2**30, 32), b"")
    os.truncate(path, path.stat().st_size + 2**38)
    assert NpyReader().describe(str(path)).rows == 2**30
    array = NpyReader().read(str(path), 2**29, 2**29 + 2)[0]["x"]
    same(array, np.zeros((2, 32)))
    assert type(array) is np.ndarray
    assert array.flags.c_contiguous
    assert array.flags.owndata


@pytest.mark.parametrize("content", [STORED, b"PK\x03\x04" + bytes(99)], ids=["whole", "broken"])
def test_an_npz_under_the_name_of_an_npy_leaves_nothing_open(tmp_path, content):
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
    for suffix in ("npy", "npz", "pt"):
        (folder / f"pickle.{suffix}").write_bytes(pickle.dumps({"x": box}))
    torch.save({"x": torch.arange(3), "y": Bomb(folder / "boom")}, folder / "dict.pt")
    torch.save((torch.arange(3), Bomb(folder / "boom")), folder / "pair.pt")
    torch.save(Bomb(folder / "boom"), folder / "alone.pth")
    torch.save({"x": Bomb(folder / "boom")}, folder / "old.pt", _use_new_zipfile_serialization=False)


def test_pickles_are_refused_and_not_executed(tmp_path):
    bombs(tmp_path)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 13
    for path in files:
        with names(path):
            FileDataset([path])
        with names(path), bad_file_errors(str(path)):
            as_reader(None, [str(path)]).read(str(path), 0, 3)
    assert not (tmp_path / "boom").exists()
    with names(tmp_path / "dict.pt", r"holds other objects than tensors; they are pickled and therefore not read$"):
        FileDataset([tmp_path / "dict.pt"])
    pickle.loads(pickle.dumps(Bomb(tmp_path / "boom")))  # it goes off
    assert (tmp_path / "boom").exists()


@pytest.mark.parametrize("name", ["0.npz", "1.npz", "0c.npz"])
def test_an_array_of_objects_is_an_error_that_says_which(tmp_path, name):
    bombs(tmp_path)
    with names(tmp_path / name, "holds Python objects in 'y'"):
        FileDataset([tmp_path / name])
    with pytest.raises(FileContentError, match="holds Python objects in 'y'"):
        NpzReader().read(str(tmp_path / name), 0, 3)
    same(read_file(tmp_path / name, keys=["x"])["x"], np.arange(3))


# Files of torch


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
    for number, (saved, keys) in enumerate(((x, ["x"]), (of((x,)), ["x"]), (of((x, y)), ["x", "y"]))):
        torch.save(saved, path := tmp_path / f"{number}.pt")
        arrays = read_file(path)
        assert list(arrays) == keys
        assert torch.equal(arrays["x"], x)
        assert torch.equal(arrays.get("y", y), y)


NO_TENSORS = {
    "holds 3 tensors without names; save a dict of tensors": [torch.zeros(3)] * 3,
    "holds a NoneType under 'x'": None,
    "holds a float under 'lr'; select the tensors with keys=": {"x": torch.zeros(3), "lr": 0.1},
    "holds a dict under 'x'": {"x": {"y": torch.zeros(3)}},
    "holds a Tensor under 1": {1: torch.zeros(3)},
    "holds no arrays": (),
    "holds a int under 'y'": (torch.zeros(3), 3),
    "holds a single value in 'x'": torch.tensor(3.0),
    "holds arrays of different lengths: 'x' 3, 'y' 4": (torch.zeros(3), torch.zeros(4)),
    "'x' in it is a tensor of torch.float32, torch.strided on meta": {"x": torch.zeros(3, 2, device="meta")},
    "'x' in it is a tensor of torch.float32, torch.sparse_coo on cpu": {"x": torch.eye(3).to_sparse()},
}


@pytest.mark.parametrize("reason", NO_TENSORS)
def test_a_pt_without_rows_by_name_is_an_error(tmp_path, reason):
    torch.save(NO_TENSORS[reason], tmp_path / "f.pt")
    with names(tmp_path / "f.pt", reason):
        FileDataset(tmp_path / "f.pt")


def test_a_pt_in_the_format_of_before_mapping_is_an_error(tmp_path):
    torch.save({"x": torch.zeros(3)}, tmp_path / "f.pt", _use_new_zipfile_serialization=False)
    with names(tmp_path / "f.pt", "mmap can only be used with files saved with"):
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
        assert read.untyped_storage().nbytes() == read.nbytes
        assert torch.equal(read, saved[key][1:5])


def test_entries_of_a_pt_that_are_not_selected_can_be_anything(tmp_path):
    others = {"lr": 0.1, "nested": {"z": [1, 2]}, 3: torch.zeros(2), "meta": torch.zeros(2, device="meta")}
    torch.save({"x": torch.from_numpy(X), "y": torch.from_numpy(Y), **others}, path := tmp_path / "f.pt")
    arrays = read_file(path, keys=["y", "x"])
    assert list(arrays) == ["y", "x"]
    same(arrays["x"], X)
    with names(path, "holds a dict under 'nested'; select the tensors with keys="):
        FileDataset(path, keys=["x", "nested"])


def test_a_pt_file_is_mapped_to_be_counted_and_read(tmp_path, monkeypatch):
    torch.save({"x": torch.arange(10)}, path := str(tmp_path / "f.pt"))
    asked, load = [], torch.load
    monkeypatch.setattr(torch, "load", lambda *args, **options: asked.append(options) or load(*args, **options))
    TorchReader().describe(path)
    TorchReader().read(path, 0, 2)
    assert len(asked) == 2
    assert all(options["mmap"] and options["weights_only"] for options in asked)
