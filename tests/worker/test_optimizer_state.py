"""The states of optimizers go with the names of parameters, whatever their order."""

from itertools import permutations

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer, Merge
from compss_train.callbacks import Checkpoint

LAYERS = ("first", "second", "head")
X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
Y = X[:, :1] * X[:, 3:]
ADAM = {"optimizer": "adam", "lr": 0.02}
MERGES = [
    Merge(),
    Merge(optimizer_state="average"),
    Merge(outer_optimizer={"optimizer": "adam", "lr": 0.1}),
    Merge(averaging=0.5, averaging_unit="steps"),
]
LBFGS = {"optimizer": torch.optim.LBFGS, "lr": 0.3, "max_iter": 2}


class Net(nn.Module):
    def __init__(self, order=LAYERS, frozen=()):
        super().__init__()
        torch.manual_seed(0)
        layers = {"first": nn.Linear(4, 4), "second": nn.Linear(4, 4), "head": nn.Linear(4, 1)}
        for name in order:
            setattr(self, name, layers[name])
        for name in frozen:
            layers[name].requires_grad_(False)

    def forward(self, x):
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))))


def trainer_of(optimizer, *network):
    trainer = DistributedTrainer(2, engine="serial", threads=1, seed=0)
    trainer.build(Net(*network), optimizer, "mse")
    return trainer


def fitted(trainer, epochs, **options):
    trainer.fit(X, Y, num_epochs=epochs, batch_size=10, progress=False, **options)
    return trainer.get_parameters()


@pytest.mark.parametrize("groups", [{}, {"groups": {"first": {"lr": 0.001}}}], ids=str)
@pytest.mark.parametrize("merge", MERGES, ids=repr)
def test_layers_in_another_order_resume_in_the_same_bits(tmp_path, groups, merge):
    optimizer = {**ADAM, **groups}
    whole = fitted(trainer_of(optimizer), 3, merge=merge)
    checkpoint = Checkpoint(tmp_path)
    fitted(trainer_of(optimizer), 2, callbacks=[checkpoint], merge=merge)
    for order in permutations(LAYERS):
        resumed = fitted(trainer_of(optimizer, order), 3, resume=tmp_path, merge=merge)
        assert all(np.array_equal(whole[name], resumed[name]) for name in whole), order


@pytest.mark.filterwarnings("ignore:the workers keep the states of LBFGS")
@pytest.mark.parametrize(
    ("optimizer", "network", "name"),
    [
        (ADAM, (LAYERS, ("first",)), "first.weight"),
        (LBFGS, (LAYERS[::-1],), "the same order"),
    ],
    ids=["frozen", "LBFGS"],
)
@pytest.mark.filterwarnings("ignore:the workers keep the states of LBFGS")
def test_what_has_no_partner(tmp_path, raises, optimizer, network, name):
    fitted(trainer_of(optimizer), 1, callbacks=[Checkpoint(tmp_path)])
    trainer = trainer_of(optimizer, *network)
    with raises(ValueError, name):
        fitted(trainer, 2, resume=tmp_path)
