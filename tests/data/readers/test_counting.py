"""Counting the samples of a file reads headers, not data."""

import os
import zipfile

import h5py
import numpy as np
import pytest
import torch

from compss_train import FileDataset
from compss_train.data.readers import Hdf5Reader, NpyReader, NpzReader, TorchReader
from tests.data.readers.checks import filled, in_every, names, overwritten, same
from tests.data.readers.formats import OWN, read_file, with_header


@in_every({name: form for name, form in OWN.items() if name in ("npz", "npy", "pt", "hdf5")})
def test_counting_does_not_see_the_data(tmp_path, form):
    path = form.saved(tmp_path, x=(array := filled((3_000, 3))))
    before = form.reader.describe(path)
    overwritten(path, array)
    assert form.reader.describe(path) == before


def test_a_checksum_detects_changed_data_in_an_npz(tmp_path):
    np.savez(tmp_path / "f.npz", x=(array := filled((3_000, 3))), y=np.arange(3_000))
    overwritten(path := str(tmp_path / "f.npz"), array)
    dataset = FileDataset([path])
    assert dataset.number_samples == 3_000
    with names(path, r"is corrupt: 'x\.npy' does not match its checksum"):
        read_file(path)
    same(read_file(path, keys=["y"])["y"], np.arange(3_000))


def test_a_checksum_detects_changed_data_in_a_compressed_npz(tmp_path):
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
