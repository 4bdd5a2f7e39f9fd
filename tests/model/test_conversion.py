"""Arrays of any numeric dtype train the bits of converted ones, with one warning; networks get what they take."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer, FileDataset, write_files
from compss_train.model.conversion import Converter
from tests.helpers.models import SGD, assert_same_bits, classification, mlp

X, Y = classification()
WHOLE = np.arange(X.size).reshape(X.shape) % 7
FIT = {"num_epochs": 2, "batch_size": 20, "progress": False}


def fitted(x, y, net=mlp, loss="cross_entropy", **options):
    trainer = DistributedTrainer(2, engine="serial", seed=0, threads=1)
    trainer.build(net(), SGD, loss)
    return trainer.fit(x, y, **FIT, **options), trainer


@pytest.mark.parametrize("loss", ["cross_entropy", nn.CrossEntropyLoss()])
@pytest.mark.parametrize(
    ("x", "y"),
    [
        (X.astype(np.float64), Y),
        (X.astype(np.float16), Y.astype(np.int32)),
        (WHOLE, Y.astype(np.uint16)),
        (WHOLE.astype(np.uint16), Y.astype(np.int8)),
        (torch.from_numpy(X).double(), torch.from_numpy(Y).to(torch.uint16)),
    ],
    ids=["float64", "float16", "integers", "uint16", "tensors"],
)
@pytest.mark.filterwarnings("ignore:.* becomes float32")
def test_other_dtypes_train_as_converted_ones(x, y, loss):
    expected, _ = fitted(np.asarray(x).astype(np.float32), np.asarray(y).astype(np.int64), loss=loss)
    trained, trainer = fitted(x, y, loss=loss, validation_data=(x, y))
    assert_same_bits(trained, expected)
    assert trainer.predict(x).dtype == np.float32


def test_the_warning_is_given_once_a_program():
    def net():
        return nn.Linear(6, 1)

    double = X.astype(np.float64), X[:, :1].astype(np.float64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for loss in ("mse", nn.MSELoss()):
            fitted(*double, net=net, loss=loss, validation_data=double)
    assert [str(each.message).partition(",")[0] for each in caught] == ["float64 becomes float32"]
    assert caught[0].filename == __file__


@pytest.mark.filterwarnings("error")
def test_what_a_network_takes_is_left_as_it_is():
    def embedding():
        return nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(24, 3))

    fitted(WHOLE, Y, net=embedding)
    trained, _ = fitted(X.astype(np.float64), Y, net=lambda: mlp().double())
    assert {array.dtype for array in trained.values()} == {np.dtype(np.float64)}
    converter = Converter(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        converter.call(nn.Linear(2, 2), torch.ones(3, 5, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:.* becomes float32")
def test_files_of_other_dtypes_are_converted_too(tmp_path):
    files = write_files(tmp_path, {"x": WHOLE.astype(np.uint16), "y": Y.astype(np.uint16)}, rows=20)
    trained, _ = fitted(FileDataset(files), None)
    plain = write_files(tmp_path / "plain", {"x": WHOLE.astype(np.float32), "y": Y}, rows=20)
    assert_same_bits(trained, fitted(FileDataset(plain), None)[0])
