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


class OtherKinds(torch.optim.Adam):
    """Keeps numbers and tensors of other dtypes than the parameters', as optimizers do."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    state["counts"] = [torch.zeros((), dtype=torch.int64)]
                    state["wide"] = torch.zeros(parameter.shape, dtype=torch.float64)
                    state["narrow"] = torch.zeros(parameter.shape, dtype=torch.bfloat16)
                state["step"] += 1
                state["counts"][0] += 1
                state["wide"].mul_(0.9).add_(parameter.grad)
                state["narrow"].mul_(0.9).add_(parameter.grad)
                moment = state["wide"].float() + state["narrow"].float()
                rate = group["lr"] * (1 - 0.9 ** state["step"]) / (1 + state["counts"][0] // 3)
                parameter.sub_(moment, alpha=float(rate))


class Around(torch.optim.Optimizer):
    """Has the groups and the state of the optimizer inside, as properties."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.scale = 1.0

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    @property
    def state(self):
        return self.optimizer.state

    def state_dict(self):
        return self.optimizer.state_dict()

    def load_state_dict(self, state):
        self.optimizer.load_state_dict(state)

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure=None):
        self.scale *= 0.9
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad *= self.scale
        self.optimizer.step()


PACKAGES = {
    "other kinds": lambda parameters: OtherKinds(parameters, lr=0.02),
    "around Adam": lambda parameters: Around(torch.optim.Adam(parameters, lr=0.02)),
    "around other kinds": lambda parameters: Around(OtherKinds(parameters, lr=0.02)),
}


@pytest.mark.parametrize("name", PACKAGES)
def test_optimizers_as_packages_have_them_are_the_plain_loop(tmp_path, engine, name):
    net = Net()
    optimizer = PACKAGES[name](net.parameters())
    for start in [*range(0, len(X), 10)] * 4:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(X[start : start + 10]), Y[start : start + 10]).backward()
        optimizer.step()
    expected = net.state_dict()
    for epochs in (2, 4):
        trainer = DistributedTrainer(1, engine=engine, threads=1, seed=0)
        trainer.build(Net(), PACKAGES[name], "mse")
        still = {"shuffle": None, "shuffle_block_data": False}
        checkpoint = {"callbacks": [Checkpoint(tmp_path)], "resume": True}
        fitted(trainer, epochs, **still, **checkpoint)
    for key, array in trainer.get_parameters().items():
        assert np.array_equal(array, expected[key].numpy()), key


class Replacing(Net):
    """Makes a new parameter with each batch."""

    def forward(self, x):
        self.head.bias = nn.Parameter(self.head.bias + 1)
        return super().forward(x)


def test_parameters_that_batches_replace_are_named(raises):
    trainer = DistributedTrainer(1, engine="serial", threads=1, seed=0)
    trainer.build(Replacing(), ADAM, "mse")
    with raises(ValueError, "replaced head.bias of the network"):
        fitted(trainer, 2)
