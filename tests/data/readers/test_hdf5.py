"""The reader of HDF5 files."""

import sys

import h5py
import numpy as np
import pytest

from compss_train import FileDataset
from compss_train.data.readers import Hdf5Reader
from tests.data.readers.checks import X, Y, names, overwritten, same
from tests.data.readers.formats import read_file, save_hdf5


def test_data_sets_in_groups_are_called_by_their_path(tmp_path):
    save_hdf5(path := str(tmp_path / "f.h5"), **{"a/b/x": X, "y": Y})
    arrays = read_file(path)
    assert set(arrays) == {"a/b/x", "y"}
    same(arrays["a/b/x"], X)
    with h5py.File(path, "r+") as file:  # which HDF5 would not open while someone reads it
        file["y"][0] = 0


def test_a_data_set_of_many_times_the_memory_is_counted_and_read_by_rows(tmp_path):
    with h5py.File(path := str(tmp_path / "f.h5"), "w") as file:
        file.create_dataset("x", (2**34, 32), np.float64, chunks=(4, 32))[2**33] = 7
    assert Hdf5Reader().describe(path).rows == 2**34
    assert Hdf5Reader().read(path, 2**33 - 1, 2**33 + 1)[0]["x"][:, 0].tolist() == [0, 7]


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


@pytest.mark.parametrize(
    ("value", "reason"), [(["a", "b"], "holds Python objects in 'x'"), (h5py.Empty("f4"), "holds no arrays")]
)
def test_strings_and_data_sets_without_a_shape_are_errors(tmp_path, value, reason):
    with h5py.File(path := str(tmp_path / "f.h5"), "w") as file:
        file["x"] = value
    with names(path, reason):
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
        file.create_dataset("raw", X.shape, X.dtype, external=[(str(tmp_path / "secret"), 0, X.nbytes)])
    for key in ("virtual", "raw"):
        with names(path, f"has '{key}', whose data are in another file, .*; copy them into this one"):
            read_file(path, keys=[key])


def test_without_h5py_the_error_names_the_extra(tmp_path, monkeypatch):
    save_hdf5(path := str(tmp_path / "f.h5"), x=X)
    monkeypatch.setitem(sys.modules, "h5py", None)
    for on_bad_file in ("raise", "skip"):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'compss_train\[hdf5\]'") as caught:
            FileDataset(path, on_bad_file=on_bad_file)
        assert caught.value.name == "h5py"
