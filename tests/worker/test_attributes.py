"""What the objects of a plain loop keep in attributes, one worker keeps: in the same bits."""

import random
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer
from compss_train.callbacks import Checkpoint

BATCH = 10
X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True) + 1


class Part:
    """An object inside of another one."""

    def __init__(self):
        self.total = 0.5


BEGINNINGS = {
    "a number": lambda: 1.5,
    "a list": lambda: [1.0, 2.0],
    "a tuple": lambda: (1.0, True),
    "a dict of tensors": lambda: {"mean": torch.zeros(2), ("b", 1): torch.ones(1)},
    "a set": lambda: {1, 2},
    "a deque": lambda: deque([1.0, 2.0], maxlen=3),
    "a tensor": lambda: torch.zeros(3),
    "an array": lambda: np.zeros(3),
    "a generator": lambda: np.random.default_rng(3),
    "one of torch": lambda: torch.Generator().manual_seed(3),
    "one of Python": lambda: random.Random(3),
    "an object": Part,
    "objects": lambda: {"parts": [Part(), Part()]},
    "nothing": lambda: None,
    "a module": lambda: nn.Linear(2, 1).requires_grad_(False),
}


def advanced(kept):
    """Return a value after it has changed, and a number that depends on it."""
    match kept:
        case None | float():
            kept = 0.1 + (kept or 0.0)
            return kept, kept
        case tuple():
            return (kept[0] + 1, not kept[1]), kept[0]
        case set():
            kept.add(len(kept) + 1)
            return kept, len(kept)
        case list() | deque():
            kept.append(sum(kept) / 2)
            return kept, kept[-1]
        case {"mean": mean}:
            mean += 0.25
            kept["new"] = mean  # another name of the same tensor
            kept["b", 1] = kept["b", 1] * 1.5
            return kept, (kept["new"].sum() + kept["b", 1]).item()
        case {"parts": [first, second]}:
            first.total += 0.1
            return {"parts": [second, first]}, first.total - second.total / 2
        case torch.Tensor() | np.ndarray():
            kept += 0.25
            return kept, float(kept.sum())
        case np.random.Generator() | random.Random():
            return kept, kept.random()
        case torch.Generator():
            return kept, torch.rand(1, generator=kept).item()
        case Part():
            kept.total *= 1.5
            return kept, kept.total
    kept.weight += 0.125
    return kept, kept.weight.sum().item()


class Keeping:
    """Keeps something in an attribute."""

    def begin(self, kind):
        torch.manual_seed(1)
        self.kept = BEGINNINGS[kind]()

    def factor(self):
        self.kept, number = advanced(self.kept)
        return 1 + 0.01 * number


class Layer(nn.Linear, Keeping):
    def __init__(self, kind):
        super().__init__(4, 1)
        self.begin(kind)

    def forward(self, x):
        return super().forward(x) * (self.factor() if self.training else 1)


class Loss(nn.Module, Keeping):
    def __init__(self, kind):
        super().__init__()
        self.begin(kind)
        self.register_buffer("center", torch.zeros(1))

    def forward(self, output, target):
        self.center += output.detach().mean() / 10
        return ((output - self.center - target) ** 2).mean() * self.factor()


class Transform(Keeping):
    def __init__(self, kind):
        self.begin(kind)

    def __call__(self, x):
        return x * self.factor()


class Step(Keeping):
    def __init__(self, kind):
        self.begin(kind)

    def __call__(self, net, batch, context):
        x, y = batch
        return ((net(x) - y) ** 2).mean() * self.factor()


class Outer(torch.optim.Optimizer, Keeping):
    """Steps an optimizer of its own, whose groups it shares."""

    def __init__(self, parameters, kind="a number"):
        super().__init__(parameters, {"lr": 0.01})
        self.begin(kind)
        self.inner = torch.optim.Adam(self.param_groups, lr=0.01)
        self.param_groups = self.inner.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        factor = self.factor()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad *= factor
        self.inner.step()


def arguments_of(place, kind):
    """Return a network and the arguments of ``build`` with something kept at a place."""
    torch.manual_seed(0)
    layer = Layer(kind) if place == "the network" else nn.Linear(4, 1)
    arguments = {"optimizer": {"optimizer": "adam", "lr": 0.01}, "loss": nn.MSELoss()}
    if place == "the loss":
        arguments["loss"] = Loss(kind)
    elif place == "the transform":
        arguments["train_transform"] = Transform(kind)
    elif place == "the step":
        arguments["training_step"] = Step(kind)
    elif place == "the optimizer":
        arguments["optimizer"] = lambda parameters: Outer(parameters, kind)
    return nn.Sequential(layer), arguments


def looped(place, kind, epochs):
    """Return the parameters after a plain loop."""
    net, arguments = arguments_of(place, kind)
    make = arguments["optimizer"]
    adam = torch.optim.Adam
    optimizer = make(net.parameters()) if callable(make) else adam(net.parameters(), lr=0.01)
    transform = arguments.get("train_transform", lambda x: x)
    step = arguments.get("training_step")
    for start in [*range(0, len(X), BATCH)] * epochs:
        x = transform(X[start : start + BATCH])
        y = Y[start : start + BATCH]
        optimizer.zero_grad()
        loss = arguments["loss"](net(x), y) if step is None else step(net, (x, y), None)
        loss.backward()
        optimizer.step()
    return net


def fitted(engine, place, kind, epochs, **options):
    net, arguments = arguments_of(place, kind)
    trainer = DistributedTrainer(1, engine=engine, threads=1, seed=0)
    trainer.build(net, **arguments)
    trainer.fit(
        *(X, Y),
        num_epochs=epochs,
        batch_size=BATCH,
        shuffle=None,
        shuffle_block_data=False,
        progress=False,
        **options,
    )
    return trainer


def assert_alike(trainer, net):
    expected = net.state_dict()
    for name, array in trainer.get_parameters().items():
        assert np.array_equal(array, expected[name].numpy()), name


PLACES = ["the network", "the loss", "the transform", "the step", "the optimizer"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", BEGINNINGS)
def test_a_worker_keeps_what_the_loop_keeps(tmp_path, place, kind):
    net = looped(place, kind, 4)
    assert_alike(fitted("serial", place, kind, 4), net)
    fitted("serial", place, kind, 2, callbacks=[Checkpoint(tmp_path)])
    resumed = fitted("serial", place, kind, 4, callbacks=[Checkpoint(tmp_path)], resume=True)
    assert_alike(resumed, net)


@pytest.mark.parametrize("place", PLACES)
def test_on_every_engine(engine, place):
    kind = "a dict of tensors"
    assert_alike(fitted(engine, place, kind, 2), looped(place, kind, 2))


class Growing(nn.Module):
    """Makes a layer with its first batch."""

    def __init__(self, made):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.cache = []
        self._made = made

    def forward(self, x):
        if not self.cache:
            self.cache.append(self._made())
        return self.layer(x)


@pytest.mark.parametrize("made", [lambda: nn.Linear(1, 1), Part, object])
def test_what_cannot_be_kept(raises, made):
    trainer = DistributedTrainer(1, engine="serial", threads=1, seed=0)
    trainer.build(Growing(made), {"optimizer": "adam", "lr": 0.1}, nn.MSELoss())
    with raises(TypeError, "network.cache"):
        trainer.fit(X, Y, num_epochs=1, batch_size=BATCH, progress=False)


def test_a_restored_state_without_its_object(tmp_path):
    fitted("serial", "the step", "a number", 1, callbacks=[Checkpoint(tmp_path)])
    net, arguments = arguments_of("the loss", "a number")
    trainer = DistributedTrainer(1, engine="serial", threads=1, seed=0)
    trainer.build(net, **arguments)
    with pytest.warns(UserWarning, match="training_step"):
        trainer.restore(tmp_path)
    trainer.fit(X, Y, num_epochs=1, batch_size=BATCH, progress=False)
