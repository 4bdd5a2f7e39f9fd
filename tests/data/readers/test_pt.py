"""The reader of .pt files, which never loads pickled objects."""

import pickle

import numpy as np
import pytest
import torch

from compss_train import FileDataset
from compss_train.data.layout import Field, FileContentError
from compss_train.data.readers import NpzReader, TorchReader, as_reader
from compss_train.data.reading import bad_file_errors
from tests.data.readers.checks import X, Y, names, same
from tests.data.readers.formats import Bomb, read_file


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
        with names(path), bad_file_errors(str(path)):
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
    with pytest.raises(FileContentError, match="holds Python objects in 'y'"):
        NpzReader().read(str(tmp_path / name), 0, 3)
    same(read_file(tmp_path / name, keys=["x"])["x"], np.arange(3))


def test_a_pt_of_other_objects_is_an_error_that_says_what_to_save(tmp_path):
    bombs(tmp_path)
    with names(tmp_path / "dict.pt", r"holds other objects than tensors; they are pickled and therefore not read$"):
        FileDataset([tmp_path / "dict.pt"])


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
        ({"x": torch.zeros(3), "lr": 0.1}, "holds a float under 'lr'; select the tensors with keys="),
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
    with names(tmp_path / "f.pt", "has torch's old format; load it and save it again with torch.save$"):
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
        with names(path, "holds no dense tensor with data under 'z'; save dense tensors$"):
            FileDataset(path)
        same(read_file(path, keys=["x"])["x"], X[:3])


def test_entries_of_a_pt_that_are_not_selected_can_be_anything(tmp_path):
    others = {"lr": 0.1, "note": "text", "nested": {"z": [1, 2]}, 3: torch.zeros(2), "scalar": torch.tensor(3.0)}
    torch.save({"x": torch.from_numpy(X), "y": torch.from_numpy(Y), **others}, path := tmp_path / "f.pt")
    arrays = read_file(path, keys=["y", "x"])
    assert list(arrays) == ["y", "x"]
    same(arrays["x"], X)
    with names(path, "select the tensors with keys="):
        FileDataset(path)
    with names(path, "holds a dict under 'nested'; select the tensors with keys="):
        FileDataset(path, keys=["x", "nested"])
