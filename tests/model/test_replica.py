"""Arrays of any numeric dtype train the bits of converted ones, with one warning; networks get what
they take.
"""

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer
from compss_train.model.replica import ModelReplica
from compss_train.model.training_spec import TrainingSpec
from tests.helpers.models import SGD, assert_same_bits, classification, mlp, state_arrays

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
    expected, _ = fitted(
        np.asarray(x).astype(np.float32), np.asarray(y).astype(np.int64), loss=loss
    )
    trained, trainer = fitted(x, y, loss=loss, validation_data=(x, y))
    assert_same_bits(trained, expected)
    assert trainer.predict(x).dtype == np.float32


@pytest.mark.filterwarnings("error")
def test_what_a_network_takes_is_left_as_it_is():
    def embedding():
        return nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(24, 3))

    fitted(WHOLE, Y, net=embedding)
    trained, _ = fitted(X.astype(np.float64), Y, net=lambda: mlp().double())
    assert {array.dtype for array in trained.values()} == {np.dtype(np.float64)}
    net = nn.Linear(2, 2)
    spec = TrainingSpec(net=net, optimizer=torch.optim.SGD, loss=nn.functional.mse_loss)
    replica = ModelReplica(spec, state_arrays(net), "cpu", training=True)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        replica.predict(torch.ones(3, 5, dtype=torch.float64))
