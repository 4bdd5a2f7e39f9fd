"""Objects that workers do not copy with the network, and that use the one given to ``build``."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from compss_train import BufferSpec, DistributedTrainer, InputSampler, Samples
from compss_train.callbacks import WorkerCallback
from compss_train.model.network_uses import network_use
from tests.helpers.models import SGD, classification, mlp
from tests.online.fits import fit_online
from tests.online.simulations import numbered_rows

X, Y = classification(samples=32)
NET = mlp()
FIT = {"num_epochs": 1, "batch_size": 8, "progress": False}


class Holder:
    def __init__(self, held=None):
        self.held = held

    def method(self):
        return self.held


def closing_over(held):
    return lambda: held


def with_default(held):
    return lambda value=held: value


def with_attribute(held):
    def function():
        pass

    function.held = held
    return function


PLACES = {
    "object": Holder,
    "nested": lambda held: Holder([{"a": (1, Holder(held))}]),
    "method": lambda held: Holder(held).method,
    "variable": closing_over,
    "function in a function": lambda held: closing_over(closing_over(held)),
    "default": with_default,
    "attribute of a function": with_attribute,
    "partial": lambda held: partial(max, held),
    "subset": lambda held: Subset(Holder(held), [0]),
    "beside large ones": lambda held: [np.zeros(9), torch.zeros(9), b"bytes", Holder(held)],
}


@pytest.mark.parametrize("place", PLACES)
def test_parts_are_found_wherever_they_are_held(place):
    net = mlp()
    net.register_buffer("mean", torch.zeros(1))
    for part in (net, net[0], net[0].weight, net.mean):
        assert network_use(PLACES[place](part), net) == "holds the network that was given to build"
        assert network_use(PLACES[place](part), mlp()) == ""


def test_what_cannot_be_pickled_is_no_error():
    net = mlp()
    assert network_use(Holder(value for value in ()), net) == ""
    assert network_use([Holder(net), (value for value in ())], net).startswith("holds")


class Points(Dataset):
    """Reads what it holds, or global variables."""

    def __init__(self, net):
        self.net = net

    def __len__(self):
        return len(X)

    def __getitem__(self, number):
        x = torch.tensor(X[number])
        with torch.no_grad():
            return self.net(x), Y[number]


class GlobalPoints(Points):
    def __getitem__(self, number):
        with torch.no_grad():
            return NET(torch.tensor(X[number])), Y[number]


class Stream(IterableDataset):
    def __init__(self, net):
        self.net = net

    def __iter__(self):
        for number in range(8):
            yield X[number], Y[number]


def collate_by(net):
    def collate(samples):
        x, y = zip(*samples, strict=True)
        return torch.stack([torch.tensor(value) for value in x]), torch.tensor(y)

    collate.net = net
    return collate


def pairs(net=None):
    return DataLoader([*zip(X, Y, strict=True)], batch_size=8, collate_fn=collate_by(net))


def built(net, engine="serial"):
    trainer = DistributedTrainer(2, engine=engine, seed=0, threads=1)
    trainer.build(net, SGD, "cross_entropy")
    return trainer


DATA = {
    "data set": Points,
    "subset": lambda net: Subset(Points(net), range(16)),
    "stream": Stream,
    "stream of a size": lambda net: Samples(Stream(net), size=8),
    "collate_fn": pairs,
}


@pytest.mark.parametrize("kind", DATA)
def test_a_data_set_with_the_network_is_an_error(kind):
    net = mlp()
    trainer = built(net)
    match = r"the data set holds the network that was given to build, .* copy\.deepcopy\(net\)"
    for method in (trainer.evaluate, trainer.predict, partial(trainer.fit, **FIT)):
        with pytest.raises(ValueError, match=match):
            method(DATA[kind](net))
    with pytest.raises(ValueError, match=match):
        trainer.fit(X, Y, **FIT, validation_data=DATA[kind](net))


def test_a_data_set_may_hold_other_networks():
    built(nn.Linear(3, 3)).fit(Points(mlp()), **FIT)
    built(mlp()).fit(pairs(mlp()), num_epochs=1, progress=False)


def test_a_data_set_that_uses_the_network_by_a_global_variable_is_an_error():
    match = "by the global variable 'NET' in GlobalPoints.__getitem__, but workers train copies"
    with pytest.raises(ValueError, match=match):
        built(NET).fit(GlobalPoints(None), **FIT)
    built(nn.Linear(3, 3)).fit(GlobalPoints(None), **FIT)


def corrected(net):
    def simulate(value):
        yield X[0], int(net(torch.from_numpy(X[:1])).argmax())

    return simulate


@pytest.mark.parametrize("simulate", [corrected, lambda net: partial(next, net)])
def test_simulations_with_the_network_are_an_error(simulate):
    net = mlp()
    match = r"simulate= holds the network that was given to build, .* copy\.deepcopy\(net\)"
    with pytest.raises(ValueError, match=match):
        fit_online(built(net), simulate(net), [1])


class ByNetwork(InputSampler):
    def __init__(self, net):
        self.net = net

    def next(self, table):
        return int(self.net(torch.from_numpy(X[:1])).argmax())

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_a_sampler_of_inputs_with_the_network_is_an_error():
    net = mlp()
    with pytest.raises(ValueError, match=r"ByNetwork holds .* use table\.predict\(x\)"):
        fit_online(built(net), corrected(mlp()), ByNetwork(net))


def test_simulations_may_hold_other_networks(shared_local):
    trainer = built(mlp(), engine=shared_local)
    fit_online(trainer, corrected(mlp()), [1], batch_size=1, progress=False)
    assert sum(record["samples"] for record in trainer.history) == 1


class Norm(WorkerCallback):
    def on_batch_end(self, context):
        context.log("norm", NET[0].weight.norm())


def test_a_worker_callback_that_uses_the_network_by_a_global_variable_is_an_error():
    with pytest.raises(ValueError, match=r"global variable 'NET' in Norm.*; use context\.model"):
        built(NET).fit(X, Y, **FIT, callbacks=[Norm()])
    built(mlp()).fit(X, Y, **FIT, callbacks=[Norm()])


CONSTANT = torch.ones(6)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("constant", CONSTANT)
        self.net = mlp()

    def forward(self, x):
        return self.net(x * self.constant)


def test_what_made_the_network_may_use_global_variables():
    built(Scaled()).fit(X, Y, **FIT)


def predicted_by(net):
    def pairing(earlier, later):
        x = earlier.data[0]
        with torch.no_grad():
            return x, net(x)

    return pairing


def distance(model, batch, context):
    x, predicted = batch
    output = model(x)
    return {"loss": output.mean(), "distance": (output - predicted).abs().max()}


def test_a_pairing_holds_the_copy_of_each_worker(shared_local):
    net = mlp()
    trainer = DistributedTrainer(2, engine=shared_local, seed=0)
    trainer.build(net, SGD, training_step=distance)
    buffer = BufferSpec("SimPairedReservoir", 20, threshold=2, sweep_size=4, nb_time_steps=8)
    inputs = [(X[start : start + 8], Y[start : start + 8]) for start in range(0, 32, 8)]
    options = {"buffer": buffer, "batch_size": 4}
    fit_online(trainer, numbered_rows, inputs, pairing=predicted_by(net), **options)
    assert {record["distance"] for record in trainer.history} == {0.0}


def predicted_by_global(earlier, later):
    return earlier.data[0], NET(earlier.data[0])


def test_a_pairing_that_uses_the_network_by_a_global_variable_is_an_error(shared_local):
    trainer = DistributedTrainer(2, engine=shared_local, seed=0)
    trainer.build(NET, SGD, training_step=distance)
    buffer = BufferSpec("SimPairedReservoir", 20, threshold=2, sweep_size=4, nb_time_steps=8)
    with pytest.raises(ValueError, match="predicted_by_global uses the network by the global"):
        fit_online(
            trainer,
            numbered_rows,
            [(X, Y)],
            pairing=predicted_by_global,
            buffer=buffer,
            batch_size=4,
        )
