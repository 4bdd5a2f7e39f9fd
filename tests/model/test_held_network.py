"""Functions that hold the network: those of a worker hold the worker's copy of it."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from compss_train import DistributedTrainer
from compss_train.callbacks import Checkpoint
from tests.helpers.models import assert_same_bits, classification, state_arrays

X, Y = classification(samples=48)
SGD = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}
EPOCHS = 3
BATCH = 8


def cross_entropy(output, target):
    return functional.cross_entropy(output, target)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(6, 8)
        self.output = nn.Linear(8, 3)

    def forward(self, x):
        return self.output(torch.tanh(self.hidden(x)))


class WithHook(Mlp):
    """Its hook keeps what a layer returned, in a function that holds the network."""

    def __init__(self):
        super().__init__()
        self.kept = []
        self.hidden.register_forward_hook(lambda _, inputs, output: self.kept.append(output))

    def forward(self, x):
        output = super().forward(x)
        return output + self.kept.pop().mean()


class WeightNorm(Mlp):
    def __init__(self):
        super().__init__()
        self.hidden = weight_norm(self.hidden)


class Penalty:
    def __init__(self, net):
        self.net = net

    def __call__(self, output, target):
        squares = sum((parameter**2).sum() for parameter in self.net.parameters())
        return cross_entropy(output, target) + 0.01 * squares


def of_variable(net):
    def loss(output, target):
        lengths = sum(parameter.abs().sum() for parameter in net.parameters())
        return cross_entropy(output, target) + 0.01 * lengths

    return loss


def of_layer(net):
    layer = net.hidden
    return lambda output, target: cross_entropy(output, target) + layer.weight.norm()


def of_weight(net):
    weight = net.output.weight
    return lambda output, target: cross_entropy(output, target) + weight.norm()


def of_hook(net):
    """Return a loss that reads what a hook of the network has kept."""
    kept = {}

    def keep(module, inputs, output):
        kept["hidden"] = output

    net.hidden.register_forward_hook(keep)
    return lambda output, target: cross_entropy(output, target) + (kept["hidden"] ** 2).mean()


KINDS = {
    "attribute": (Mlp, Penalty),
    "variable": (Mlp, of_variable),
    "layer": (Mlp, of_layer),
    "weight": (Mlp, of_weight),
    "hook of the loss": (Mlp, of_hook),
    "hook of the network": (WithHook, lambda net: cross_entropy),
    "parametrized": (WeightNorm, of_layer),
}


def made(kind, seed=4):
    network_class, loss_of = KINDS[kind]
    torch.manual_seed(seed)
    net = network_class()
    return net, loss_of(net)


def fitted(kind, engine="serial", workers=1, epochs=EPOCHS, seed=4, **options):
    net, loss = made(kind, seed)
    trainer = DistributedTrainer(workers, engine=engine, seed=0, threads=1)
    trainer.build(net, SGD, loss)
    still = {"shuffle": None, "shuffle_block_data": False, "progress": False}
    trainer.fit(X, Y, num_epochs=epochs, batch_size=BATCH, **still, **options)
    return trainer


def batches():
    for start in range(0, len(X), BATCH):
        rows = slice(start, start + BATCH)
        yield torch.tensor(X[rows]), torch.tensor(Y[rows])


@pytest.mark.parametrize("kind", KINDS)
def test_one_worker_is_the_plain_loop(engine, kind):
    net, loss = made(kind)
    optimizer = torch.optim.SGD(net.parameters(), lr=SGD["lr"], momentum=SGD["momentum"])
    for _ in range(EPOCHS):
        for x, y in batches():
            optimizer.zero_grad()
            loss(net(x), y).backward()
            optimizer.step()
    trainer = fitted(kind, engine)
    assert_same_bits(trainer.get_parameters(), state_arrays(net))
    x, y = next(batches())
    with torch.no_grad():
        expected = loss(net(x), y).item()
    measured = trainer.evaluate(X[:BATCH], Y[:BATCH])["loss"]
    assert measured == pytest.approx(expected, rel=1e-6)
    model = trainer.model()
    assert torch.equal(model(x), net.eval()(x))


@pytest.mark.parametrize("kind", KINDS)
def test_engines_agree_and_fits_go_on(kind, engine, tmp_path):
    whole = fitted(kind, engine, workers=2).get_parameters()
    assert_same_bits(whole, fitted(kind, workers=2).get_parameters())
    fitted(kind, engine, workers=2, epochs=1, callbacks=[Checkpoint(tmp_path)])
    # Its own first parameters are of no importance.
    resumed = fitted(kind, engine, workers=2, seed=5, resume=tmp_path)
    assert_same_bits(resumed.get_parameters(), whole)


def test_the_network_that_was_given_stays_as_it_is():
    net, loss = made("attribute")
    before = state_arrays(net)
    trainer = DistributedTrainer(2, engine="serial", seed=0)
    trainer.build(net, SGD, loss)
    trainer.fit(X, Y, num_epochs=1, batch_size=BATCH, progress=False)
    assert_same_bits(state_arrays(net), before)
    assert loss.net is net


GLOBAL_NET = Mlp()
GLOBAL_NET.classes = 3


def global_loss(output, target):
    return cross_entropy(output, target) + sum(map(torch.norm, GLOBAL_NET.parameters()))


def loss_of_global_weight(output, target):
    def penalty():
        return GLOBAL_NET.hidden.weight.norm()

    return cross_entropy(output, target) + penalty()


def loss_of_constant(output, target):
    return cross_entropy(output, target) / GLOBAL_NET.classes


@pytest.mark.parametrize("loss", [global_loss, loss_of_global_weight])
def test_a_global_variable_with_the_network_is_an_error(loss):
    trainer = DistributedTrainer(1, engine="serial")
    with pytest.raises(ValueError, match=r"uses the network by the global variable 'GLOBAL_NET'"):
        trainer.build(GLOBAL_NET, SGD, loss)
    trainer.build(Mlp(), SGD, loss)  # of another network


def test_constants_of_a_network_in_a_global_variable_may_be_used():
    trainer = DistributedTrainer(1, engine="serial")
    trainer.build(GLOBAL_NET, SGD, loss_of_constant)
    trainer.fit(X, Y, num_epochs=1, batch_size=BATCH, progress=False)
