from pathlib import Path

import numpy as np
import pytest
import torch

from compss_train import BlockedTensor, FileDataset, write_files
from compss_train.cli.run_files.data import make_data
from compss_train.cli.run_files.problems import Problems, RunFileError

X = np.arange(60, dtype=np.float32).reshape(20, 3)
Y = np.arange(20)


def pair():
    return X, Y


def single():
    return torch.from_numpy(X)


def triple():
    return X, Y, Y / 20


def many():
    return X, Y, Y, Y


def made(**table):
    problems = Problems("file")
    data = make_data("[data]", table, problems)
    problems.check()
    return data


def test_what_is_left_out_may_be_none():
    np.save("x.npy", X)
    alone = made(x="x.npy", y="none", weight="none", blocks="none")
    assert alone[1:] == (None, None)
    assert np.array_equal(alone.x, X)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("y.npy", Y)
    np.savez("both.npz", x=X, y=Y, z=Y)
    np.savez("one.npz", images=X)
    torch.save({"x": torch.from_numpy(X), "y": torch.from_numpy(Y)}, "both.pt")


@pytest.mark.parametrize(
    "table",
    [
        {"x": "x.npy", "y": "y.npy"},
        {"x": "both.npz", "y": "both.npz"},
        {"x": "one.npz", "y": {"file": "both.npz", "key": "z"}},
        {"x": "both.pt", "y": "both.pt"},
        {"x": {"import": "numpy:load", "file": "x.npy"}, "y": {"file": "y.npy"}},
        {"x": f"import:{__name__}:X", "y": f"import:{__name__}:Y"},
        {"import": f"{__name__}:pair"},
    ],
    ids=str,
)
def test_every_way_to_name_arrays_gives_the_same(table):
    x, y, weight = made(**table)
    assert np.array_equal(x, X)
    assert np.array_equal(y, Y)
    assert weight is None
    x, y, _ = made(**table, blocks=4)
    assert isinstance(x, BlockedTensor)
    assert (x.shape, y.shape) == ((4, 1), (4, 1))
    assert np.array_equal(x.collect(), X)


def test_npy_files_are_mapped_not_read():
    assert isinstance(made(x="x.npy").x, np.memmap)


def test_samples_may_be_their_own_targets():
    assert made(x="x.npy").y is None
    assert made(**{"import": f"{__name__}:single"}).y is None


def test_samples_may_have_weights():
    np.save("w.npy", Y / 20)
    for table in ({"x": "x.npy", "y": "y.npy", "weight": "w.npy"}, {"import": f"{__name__}:triple"}):
        assert np.array_equal(made(**table).weight, Y / 20)
        assert np.array_equal(made(**table, blocks=4).weight.collect(), Y / 20)


def test_files_are_a_data_set_with_its_options():
    write_files("train", {"a": X, "b": Y}, rows=6)
    x, y, _ = made(files="train/*.npz", x="a", y="b", index="index.json")
    assert isinstance(x, FileDataset)
    assert (x.sizes, x.x, x.y, y) == ((6, 6, 6, 2), "a", "b", None)
    assert Path("index.json").exists()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, '[data]: it names no samples; give files = "train/*.npz", or x = '),
        ({"y": "y.npy"}, "it names no samples"),
        ({"x": "none.npy"}, "[data] x: none.npy: No such file or directory"),
        ({"x": "x.npy", "y": "none.npz"}, "[data] y: "),
        ({"x": "x.csv"}, "[data] x: files that end in '.csv': give files of one kind, .npz"),
        ({"x": 3}, "[data] x: a block needs a first dimension"),
        ({"x": {"file": "both.npz", "keys": "x"}}, "[data] x: there is no such key; did you mean key?"),
        ({"x": {"file": "both.npz", "key": "a"}}, "[data] x: "),
        ({"x": "x.npy", "Y": "y.npy"}, "[data] Y: there is no such key; did you mean y?"),
        ({"x": "x.npy", "blocks": 21}, "[data] blocks: blocks=(21, 1) makes 21 blocks of 20 samples"),
        ({"x": "x.npy", "blocks": "many"}, "[data] blocks: blocks='many' is not a grid"),
        ({"files": "x.npy", "blocks": 3}, "[data] blocks: there is no such key"),
        ({"files": "none/*.npz"}, "[data]: files='none/*.npz': there are no such files"),
        ({"files": "x.npy", "on_bad_file": "shout"}, '"shout" does not fit; give "raise" or "skip"'),
        (
            {"import": f"{__name__}:many"},
            "many returned 4 values; give x and y, x alone, or x, y and weights",
        ),
        ({"import": f"{__name__}:pair", "n": 3}, "pair has no argument n; it takes none"),
    ],
    ids=str,
)
def test_what_is_wrong_with_data_is_told(table, message):
    from compss_train.training.data_source import as_data_source

    problems = Problems("file")
    data = make_data("[data]", table, problems)
    if data is not None:
        with problems.noting("[data] x"):
            as_data_source(data.x, data.y, num_workers=1)
    with pytest.raises(RunFileError) as error:
        problems.check()
    assert message in str(error.value)
