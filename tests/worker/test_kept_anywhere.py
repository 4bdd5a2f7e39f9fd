"""Whatever a program keeps, wherever and however deeply: five rounds are those of the plain loop.

Each seed puts values of random kinds at random places, in objects, dicts and lists in each other.
"""

import os
import random
import signal

import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer
from compss_train.callbacks import Checkpoint, WorkerCallback
from tests.worker.test_attributes import BEGINNINGS, advanced, assert_alike, train_in_loop

BATCH = 10
EPOCHS = 5
X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True) + 1
PLACES = ["network", "buffers", "loss", "metric", "optimizer", "step", "closure", "transform"]


class Box:
    """An object that holds another one."""

    def __init__(self, content):
        self.content = content


class Keeper:
    """Keeps values that change with each call."""

    def __init__(self, kinds):
        self.values = [BEGINNINGS[kind]() for kind in kinds]

    def __call__(self):
        factor = 1.0
        for number, value in enumerate(self.values):
            self.values[number], changed = advanced(value)
            factor *= 1 + 0.001 * changed
        return factor


def nested(rng, keeper):
    """Return a keeper inside of other things, and the function that finds it there."""
    boxed = keeper
    opened = []
    for _ in range(rng.randrange(4)):
        wrap, unwrap = rng.choice(
            [
                (Box, lambda box: box.content),
                (lambda content: {"other": 1, ("key", 2): content}, lambda box: box["key", 2]),
                (lambda content: [None, content], lambda box: box[1]),
                (lambda content: (content, "text"), lambda box: box[0]),
            ]
        )
        boxed = wrap(boxed)
        opened.insert(0, unwrap)

    def found(box):
        for unwrap in opened:
            box = unwrap(box)
        return box()

    return boxed, found


class Keeping:
    """Has a keeper in an attribute."""

    def keep(self, rng, kinds):
        torch.manual_seed(1)
        self.box, self._found = nested(rng, Keeper(kinds))

    def factor(self):
        return self._found(self.box)


class Layer(nn.Linear, Keeping):
    def forward(self, x):
        return super().forward(x) * (self.factor() if self.training else 1)


class Buffers(nn.Module):
    """Keeps buffers, in the state_dict and outside of it, that it replaces or changes in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("inside", torch.ones(()))
        self.register_buffer("outside", torch.ones(2), persistent=False)
        self.register_buffer("later", None, persistent=False)

    def forward(self, x):
        if self.training:
            self.inside = self.inside * 1.01
            self.outside += 0.01
            self.later = self.outside * 2 if self.later is None else self.later + 0.01
        return x * self.inside * self.outside.mean() * (1 if self.later is None else self.later[0])


class Loss(nn.Module, Keeping):
    def forward(self, output, target):
        return ((output - target) ** 2).mean() * (self.factor() if self.training else 1)


class Metric(Keeping):
    def __call__(self, output, target):
        return (output - target).abs().mean() * self.factor()


class Step(Keeping):
    def __call__(self, net, batch, context):
        x, y = batch
        return nn.functional.mse_loss(net(x), y) * self.factor()


class Transform(Keeping):
    def __call__(self, x):
        return x * self.factor()


class Outer(torch.optim.Optimizer, Keeping):
    """Steps an optimizer of its own, whose groups it shares."""

    def __init__(self, parameters, seed, kinds):
        super().__init__(parameters, {"lr": 0.01})
        self.keep(random.Random(seed), kinds)
        self.inner = torch.optim.SGD(self.param_groups, lr=0.01, momentum=0.9)
        self.param_groups = self.inner.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        factor = self.factor()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad *= factor
        self.inner.step()


def program(seed):
    """Return a network and arguments of ``build`` that keep something at random places."""
    rng = random.Random(seed)
    places = rng.sample(PLACES, rng.randint(1, 4))
    kinds = {place: rng.sample([*BEGINNINGS], rng.randint(1, 3)) for place in places}
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Linear(4, 4)]
    if "network" in places:
        layer = Layer(4, 4)
        layer.keep(rng, kinds["network"])
        layers.append(layer)
    if "buffers" in places:
        layers.append(Buffers())
    net = nn.Sequential(*layers, nn.Linear(4, 1))
    if rng.random() < 0.5:
        net = nn.Sequential(nn.ModuleDict({"inner": net})["inner"])

    def kept_in(place, value):
        value.keep(rng, kinds[place])
        return value

    arguments = {"loss": nn.MSELoss(), "optimizer": {"optimizer": "adam", "lr": 0.01}}
    if "loss" in places:
        arguments["loss"] = kept_in("loss", Loss())
    if "metric" in places:
        arguments["metric"] = kept_in("metric", Metric())
    if "transform" in places:
        arguments["train_transform"] = kept_in("transform", Transform())
    if "optimizer" in places:
        arguments["optimizer"] = lambda parameters: Outer(parameters, seed, kinds["optimizer"])
    if "step" in places:
        arguments["training_step"] = kept_in("step", Step())
    elif "closure" in places:
        torch.manual_seed(1)
        box, found = nested(rng, Keeper(kinds["closure"]))
        count = 0

        def step(net, batch, context):
            nonlocal count
            count += 1
            x, y = batch
            return nn.functional.mse_loss(net(x), y) * found(box) * (1 + count / 100)

        arguments["training_step"] = step
    if "training_step" in arguments:
        arguments.pop("metric", None)  # which needs outputs
    return net, arguments


def looped(seed):
    """Return the network after the plain loop."""
    net, arguments = program(seed)
    return train_in_loop(
        net, arguments, [*zip(X.split(BATCH), Y.split(BATCH), strict=True)] * EPOCHS
    )


class Killed(WorkerCallback):
    """Kills the worker's process in its second round, in the middle of an epoch, once."""

    def __init__(self, path):
        self.path = path

    def on_batch_end(self, context):
        if context.round == 1 and context.number == 5 and not self.path.exists():
            self.path.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def fitted(engine, seed, folder, epochs, callbacks=()):
    net, arguments = program(seed)
    with DistributedTrainer(1, engine=engine, threads=1, seed=0) as trainer:
        trainer.build(net, **arguments)
        trainer.fit(
            *(X, Y),
            num_epochs=epochs,
            batch_size=BATCH,
            shuffle=None,
            shuffle_block_data=False,
            progress=False,
            callbacks=[Checkpoint(folder), *callbacks],
            resume=True,
        )
    return trainer


@pytest.mark.parametrize("seed", range(24))
def test_five_rounds_are_those_of_the_loop(tmp_path, seed):
    fitted("serial", seed, tmp_path, 2)
    fitted("serial", seed, tmp_path, 3)
    assert_alike(fitted("serial", seed, tmp_path, EPOCHS), looped(seed))


@pytest.mark.usefixtures("forked_processes")
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))]
)
def test_in_processes_that_are_killed(tmp_path, seed):
    fitted("local", seed, tmp_path / "checkpoints", 3, [Killed(tmp_path / "killed")])
    trainer = fitted("local", seed, tmp_path / "checkpoints", EPOCHS)
    assert_alike(trainer, looped(seed))
    assert (tmp_path / "killed").exists()
