"""The readers of .npz, .npy and .pt files: damage, pickles, names, and headers that are read
without data.
"""

import os
import pickle
import sys
import warnings
import zipfile
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compss_train import BadFileError, FileDataset
from compss_train.data.layout import FileContentError
from compss_train.data.order import RowRange
from compss_train.data.readers import Hdf5Reader, NpyReader, NpzReader, TorchReader, as_reader
from compss_train.data.reading import bad_file_errors
from tests.data.readers.formats import (
    Bomb,
    X,
    Y,
    names,
    npz_bytes,
    overwritten,
    read_file,
    same,
    save_hdf5,
    with_header,
)

STORED, COMPRESSED = (npz_bytes(save, x=X, y=Y) for save in (np.savez, np.savez_compressed))

# Damage


def reads_right_or_fails(path, content, **options):
    path.write_bytes(content)
    dataset = FileDataset(
        [good := f"{path}.good.npz", str(path)], files_len={good: 7, str(path): 7}, **options
    )
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
@given(
    place=st.floats(0, 1, exclude_max=True),
    change=st.integers(1, 255) | st.binary(min_size=1, max_size=64),
)
def test_a_damaged_npz_fails_or_is_read_as_before(flipped, content, place, change):
    at = int(place * len(content))
    noise = change if isinstance(change, bytes) else bytes([content[at] ^ change])
    reads_right_or_fails(flipped, content[:at] + noise + content[at + len(noise) :])


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


@pytest.mark.parametrize("name", ["f.npz", "f.npy"])
@pytest.mark.parametrize("shape", ["(-2, 3)", "(3, 3)", "(99999999999999, 3)", "(2, 3, -1)"])
def test_a_shape_unlike_the_data_is_an_error_before_reading(tmp_path, name, shape):
    with_header(path := tmp_path / name, shape, bytes(48))
    with names(path):
        FileDataset([path])


def test_an_npy_larger_than_memory_is_read_by_rows(tmp_path):
    with_header(path := tmp_path / "f.npy", (2**30, 32), b"")
    os.truncate(path, path.stat().st_size + 2**38)
    assert NpyReader().describe(str(path)).rows == 2**30
    array = NpyReader().read(str(path), 2**29, 2**29 + 2)[0]["x"]
    same(array, np.zeros((2, 32)))
    assert type(array) is np.ndarray
    assert array.flags.c_contiguous
    assert array.flags.owndata


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
    torch.save(
        {"x": Bomb(folder / "boom")}, folder / "old.pt", _use_new_zipfile_serialization=False
    )


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
    with names(
        tmp_path / "dict.pt",
        r"holds other objects than tensors; they are pickled and therefore not read$",
    ):
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


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("of", [tuple, list])
def test_a_tensor_is_x_and_a_pair_x_and_y(tmp_path, of, zipped):
    x = torch.arange(6.0).reshape(3, 2)
    y = torch.arange(3)
    for number, (saved, keys) in enumerate(
        ((x, ["x"]), (of((x,)), ["x"]), (of((x, y)), ["x", "y"]))
    ):
        torch.save(saved, path := tmp_path / f"{number}.pt", _use_new_zipfile_serialization=zipped)
        arrays = read_file(path)
        assert list(arrays) == keys
        assert torch.equal(arrays["x"], x)
        assert torch.equal(arrays.get("y", y), y)


NO_TENSORS = {
    "3 tensors without names": [torch.zeros(3)] * 3,
    "a NoneType under 'x'": None,
    "a float under 'lr'": {"x": torch.zeros(3), "lr": 0.1},
    "a dict under 'x'": {"x": {"y": torch.zeros(3)}},
    "a Tensor under 1": {1: torch.zeros(3)},
    "holds no arrays": (),
    "a int under 'y'": (torch.zeros(3), 3),
    "holds a single value in 'x'": torch.tensor(3.0),
    "holds arrays of different lengths: 'x' 3, 'y' 4": (torch.zeros(3), torch.zeros(4)),
    "torch.strided on meta": {"x": torch.zeros(3, 2, device="meta")},
    "torch.sparse_coo on cpu": {"x": torch.eye(3).to_sparse()},
}


@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants")  # of torch 2.15
@pytest.mark.parametrize("name", NO_TENSORS)
def test_a_pt_without_rows_by_name_is_an_error(tmp_path, name, raises):
    torch.save(NO_TENSORS[name], tmp_path / "f.pt")
    with raises(BadFileError, name):
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


def test_data_sets_in_groups_are_called_by_their_path(tmp_path):
    save_hdf5(path := str(tmp_path / "f.h5"), **{"a/b/x": X, "y": Y})
    arrays = read_file(path)
    assert set(arrays) == {"a/b/x", "y"}
    same(arrays["a/b/x"], X)
    with h5py.File(path, "r+") as file:  # which HDF5 would not open while someone reads it
        file["y"][0] = 0


def test_a_data_set_larger_than_memory_is_read_by_rows(tmp_path):
    with h5py.File(path := str(tmp_path / "f.h5"), "w") as file:
        file.create_dataset("x", (2**34, 32), np.float64, chunks=(4, 32))[2**33] = 7
    assert Hdf5Reader().describe(path).rows == 2**34
    assert Hdf5Reader().read(path, 2**33 - 1, 2**33 + 1)[0]["x"][:, 0].tolist() == [0, 7]


def test_the_checksum_of_a_data_set_is_checked(tmp_path):
    with h5py.File(path := str(tmp_path / "f.h5"), "w") as file:
        file.create_dataset("x", data=X, fletcher32=True)
    overwritten(path, X)
    assert FileDataset(path).sizes == (7,)
    with names(path):
        read_file(path)


def test_links_are_not_followed(tmp_path):
    save_hdf5(str(tmp_path / "other.h5"), **{"a/z": X + 1})
    save_hdf5(path := str(tmp_path / "f.h5"), **{"a/x": X})
    with h5py.File(path, "a") as file:
        file["hard"] = file["a/x"]
        file["soft"] = h5py.SoftLink("/a/x")
        file["external"] = h5py.ExternalLink("other.h5", "/a/z")
        file["broken"] = h5py.SoftLink("/nowhere")
        file["through"] = h5py.SoftLink("/elsewhere/z")
        file["elsewhere"] = h5py.ExternalLink("other.h5", "/a")
        file["a/external"] = h5py.ExternalLink("other.h5", "/a/z")
    assert set(read_file(path)) == {"hard", "a/x"}
    same(read_file(path)["hard"], X)
    for key in ("soft", "external", "broken", "through", "elsewhere/z", "a/external"):
        with names(path, "a link, which is not followed: copy the data here"):
            read_file(path, keys=[key])


def test_data_in_other_files_are_not_read(tmp_path):
    save_hdf5(other := str(tmp_path / "other.h5"), z=X)
    (tmp_path / "secret").write_bytes(X.tobytes())
    with h5py.File(path := str(tmp_path / "f.h5"), "w") as file:
        layout = h5py.VirtualLayout(X.shape, X.dtype)
        layout[:] = h5py.VirtualSource(other, "z", X.shape)
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset(
            "raw", X.shape, X.dtype, external=[(str(tmp_path / "secret"), 0, X.nbytes)]
        )
    for key in ("virtual", "raw"):
        with names(
            path, (f"has '{key}', whose data are in another file, .*; copy them into this one")
        ):
            read_file(path, keys=[key])


def test_without_h5py_the_error_names_the_extra(tmp_path, monkeypatch):
    save_hdf5(path := str(tmp_path / "f.h5"), x=X)
    monkeypatch.setitem(sys.modules, "h5py", None)
    for on_bad_file in ("raise", "skip"):
        with pytest.raises(
            ModuleNotFoundError, match=r"pip install 'compss_train\[hdf5\]'"
        ) as caught:
            FileDataset(path, on_bad_file=on_bad_file)
        assert caught.value.name == "h5py"
