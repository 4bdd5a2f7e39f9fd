"""Arrays that torch cannot hold, and errors of the machine, for which no file is skipped."""

import errno
import os
import resource
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import torch

from compss_train import DistributedTrainer, FileDataset, PartialShuffleSampler
from compss_train.data.order import RowRange
from tests.data.readers.checks import X, in_every, names, same
from tests.data.readers.formats import FORMATS, OWN, read_file

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
    reason = "holds .* in 'x', which torch cannot hold; convert it, or select the other arrays with keys=$"
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
def test_an_array_that_torch_cannot_hold_does_no_harm_where_it_is_not_read(tmp_path, kind):
    np.savez(path := tmp_path / "f.npz", x=X[:3], z=UNFIT[kind])
    same(read_file(path, keys=["x"])["x"], X[:3])
    (batch,) = PartialShuffleSampler(FileDataset(path, keys=["x"]), batch_size=3)
    assert list(batch) == ["x"]
    with names(path, "holds .* in 'z', which torch cannot hold"):
        PartialShuffleSampler(FileDataset(path))


@in_every(OWN)
def test_too_many_open_files_are_no_reason_to_skip_a_file(tmp_path, form):
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
            lambda: dataset.part([0]).read(RowRange(0, 0, 7)),
        ):
            with pytest.raises(OSError) as caught:
                use()
            assert caught.value.errno == errno.EMFILE
            assert caught.value.__notes__ == [f"while reading {path}"]
    finally:
        for number in taken:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    same(read_file(path)["x"], X)
