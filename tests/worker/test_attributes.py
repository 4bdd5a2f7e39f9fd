"""What the objects of a plain loop keep in attributes, one worker keeps: in the same bits."""

import random
import runpy
from collections import deque
from enum import Enum
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.fx
from torch import nn
from torch.distributions import Normal

from compss_train import DistributedTrainer, Merge
from compss_train.callbacks import Checkpoint
from compss_train.training.checkpoints import list_checkpoints

BATCH = 10
X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True) + 1
BATCHES = [*zip(X.split(BATCH), Y.split(BATCH), strict=True)]


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


def train_in_loop(net, arguments, batches):
    """Train a network in a plain loop as the arguments of ``build`` say, and return it."""
    make = arguments["optimizer"]
    adam = torch.optim.Adam
    optimizer = make(net.parameters()) if callable(make) else adam(net.parameters(), lr=0.01)
    transform = arguments.get("train_transform", lambda x: x)
    step = arguments.get("training_step")
    for samples, y in batches:
        x = transform(samples)
        optimizer.zero_grad()
        loss = arguments["loss"](net(x), y) if step is None else step(net, (x, y), None)
        loss.backward()
        optimizer.step()
    return net


def looped(place, kind, epochs):
    """Return the parameters after a plain loop."""
    net, arguments = arguments_of(place, kind)
    return train_in_loop(net, arguments, BATCHES * epochs)


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
    assert_alike(fitted("serial", place, kind, 4, callbacks=[Checkpoint(tmp_path, keep=3)]), net)
    assert_alike(fitted("serial", place, kind, 4, resume=list_checkpoints(tmp_path)[1]), net)


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
        if self.cache[0]:
            return self.layer(x)
        return x


def grown(made, epochs):
    trainer = DistributedTrainer(1, engine="serial", threads=1, seed=0)
    trainer.build(Growing(made), {"optimizer": "adam", "lr": 0.1}, nn.MSELoss())
    trainer.fit(X, Y, num_epochs=epochs, batch_size=BATCH, progress=False)
    return trainer


@pytest.mark.parametrize("made", [lambda: nn.Linear(1, 1), Part, object, lambda: Normal(0.0, 1.0)])
def test_what_cannot_be_kept_is_an_error_where_it_is_used(raises, made):
    trainer = grown(made, 1)  # as in the loop, nothing of an earlier round is used
    assert trainer.model().cache == []
    with raises(TypeError, "network.cache"):
        trainer.fit(X, Y, num_epochs=1, batch_size=BATCH, progress=False)


class Replacing(nn.Module):
    """Makes an object with every batch, and lists of tensors with their graphs, as VAEs do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.posterior = None
        self.maps = []

    def forward(self, x):
        self.maps = [torch.sigmoid(self.layer(x))]
        self.posterior = Normal(self.layer(x), 1.0)
        self.mean = self.posterior.loc
        return self.posterior.loc * self.maps[0]


def test_what_each_batch_replaces_may_be_of_any_kind(tmp_path, engine):
    def built():
        torch.manual_seed(0)
        trainer = DistributedTrainer(1, engine=engine, threads=1, seed=0)
        trainer.build(Replacing(), {"optimizer": "sgd", "lr": 0.1}, nn.MSELoss())
        return trainer

    options = {"batch_size": BATCH, "shuffle": None, "shuffle_block_data": False}
    options |= {"progress": False, "callbacks": [Checkpoint(tmp_path)], "resume": True}
    trainer = built()
    trainer.fit(X, Y, num_epochs=2, **options)
    trainer = built()
    trainer.fit(X, Y, num_epochs=3, **options)
    torch.manual_seed(0)
    net = Replacing()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for start in [*range(0, len(X), BATCH)] * 3:
        optimizer.zero_grad()
        nn.MSELoss()(net(X[start : start + BATCH]), Y[start : start + BATCH]).backward()
        optimizer.step()
    assert_alike(trainer, net)
    kept = trainer.model()
    assert kept.posterior is None
    assert torch.equal(kept.maps[0], net.maps[0])
    assert not kept.maps[0].requires_grad


class Kind(Enum):
    FIRST = 1
    SECOND = 2


class Tables(nn.Module):
    """Looks up numbers, which batches change, by classes, functions, members and objects."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 1)
        self.parts = [Part(), Part()]
        self.table = {nn.Linear: 1.0, nn.Conv1d: 2.0, torch.tanh: 0.5}
        self.table |= {Kind.FIRST: 1, Kind.SECOND: 2}
        self.by_part = {part: number for number, part in enumerate(self.parts)}
        self.by_object = {Part(): 1.0, nn.Linear: 2.0, Part(): 3.0}
        self.kinds = {int, float, nn.Linear, Kind.FIRST}

    def forward(self, x):
        if self.training:
            self.table[nn.Linear] += 0.5
            self.table[Kind.SECOND] += 1
            self.by_part[self.parts[1]] += 2
            for part in self.by_object:
                if isinstance(part, Part):
                    part.total += self.by_object[part]
        totals = [part.total for part in self.by_object if isinstance(part, Part)]
        factor = self.table[type(self.layer)]
        return factor * self.layer(x) + sum(self.by_part.values()) + sum(totals)


@pytest.mark.parametrize("make", [Tables, lambda: torch.fx.symbolic_trace(traced_net())])
def test_tables_by_objects_and_graphs_are_kept(tmp_path, engine, make):
    net = train_in_loop(make(), {"optimizer": "adam", "loss": nn.MSELoss()}, BATCHES * 4)

    def fitted(epochs, **options):
        trainer = DistributedTrainer(1, engine=engine, threads=1, seed=0)
        trainer.build(make(), {"optimizer": "adam", "lr": 0.01}, nn.MSELoss())
        still = {"shuffle": None, "shuffle_block_data": False, "progress": False}
        trainer.fit(X, Y, num_epochs=epochs, batch_size=BATCH, **still, **options)
        return trainer

    fitted(2, callbacks=[Checkpoint(tmp_path)])
    for trainer in (fitted(4), fitted(4, resume=tmp_path)):
        assert_alike(trainer, net)
        assert torch.equal(trainer.model()(X), net.eval()(X))


def traced_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


class Item(NamedTuple):
    name: str
    data: dict


class Fitting(nn.Module):
    """Notes with its first batch what no copy has: names of torch, members and parts of tuples."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(4, 1)
        self.dtype = self.kinds = self.rows = self.items = self.layout = None
        self.last.dtype = self.last.kinds = self.last.data = self.last.memory = None

    def forward(self, x):
        if self.dtype is None:
            self.dtype = self.last.dtype = x.dtype
            self.kinds = [Kind.SECOND]
            self.last.kinds = {Kind.FIRST: range(1, 3), "rows": self.kinds}
            self.rows = [slice(1, None), slice(None)]
            self.layout = x.layout
            self.last.memory = torch.contiguous_format
        data = {"mean": x.mean()}
        self.items = [Item("x", data)]
        self.last.data = data
        as_noted = x.to(self.last.dtype, memory_format=self.last.memory)
        factor = self.kinds[0].value + self.last.kinds[Kind.FIRST].stop + (self.layout == x.layout)
        return self.last(as_noted[self.rows[1]]) * factor + self.last.data["mean"]


def test_names_of_torch_members_and_parts_of_what_is_not_kept(tmp_path, engine):
    net = train_in_loop(Fitting(), {"optimizer": "adam", "loss": nn.MSELoss()}, BATCHES * 4)
    for epochs in (2, 4):
        trainer = DistributedTrainer(1, engine=engine, threads=1, seed=0)
        trainer.build(Fitting(), {"optimizer": "adam", "lr": 0.01}, nn.MSELoss())
        still = {"shuffle": None, "shuffle_block_data": False, "progress": False}
        checkpoint = {"callbacks": [Checkpoint(tmp_path)], "resume": True}
        trainer.fit(X, Y, num_epochs=epochs, batch_size=BATCH, **still, **checkpoint)
    assert_alike(trainer, net)
    kept = trainer.model()
    assert kept.last.kinds == {Kind.FIRST: range(1, 3), "rows": [Kind.SECOND]}
    assert kept.rows == [slice(1, None), slice(None)]
    assert (kept.dtype, kept.last.memory) == (torch.float32, torch.contiguous_format)


class Lazy(nn.Module):
    """Makes a layer of its own with its first batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        if not hasattr(self, "scale"):
            self.scale = nn.Identity()
        return self.scale(self.layer(x))


def test_a_module_made_while_training(raises):
    trainer = DistributedTrainer(1, engine="serial", threads=1, seed=0)
    trainer.build(Lazy(), {"optimizer": "adam", "lr": 0.1}, nn.MSELoss())
    with raises(TypeError, "network.scale"):
        trainer.fit(X, Y, num_epochs=1, batch_size=BATCH, progress=False)


def test_a_restored_state_without_its_object(tmp_path):
    fitted("serial", "the step", "a number", 1, callbacks=[Checkpoint(tmp_path)])
    net, arguments = arguments_of("the loss", "a number")
    trainer = DistributedTrainer(1, engine="serial", threads=1, seed=0)
    trainer.build(net, **arguments)
    with pytest.warns(UserWarning, match="training_step"):
        trainer.restore(tmp_path)
    trainer.fit(X, Y, num_epochs=1, batch_size=BATCH, progress=False)


def closures(place):
    """Return functions that keep something in their cells, attributes and defaults, and a net."""
    torch.manual_seed(0)
    count = 0
    seen = []
    center = torch.zeros(1)

    def add():
        nonlocal count
        count += 1
        seen.append(count)
        return 1 + 0.01 * (sum(seen) + center.item())

    def step(net, batch, context=None, memory=[]):  # noqa: B006
        x, y = batch
        memory.append(0.5)
        step.calls = getattr(step, "calls", 0) + 1
        loss = ((net(x) - y) ** 2).mean()
        with torch.no_grad():
            center.add_(loss / 100)
        return loss * add() * (1 + len(memory) / 100) * (1 + step.calls / 100)

    def loss(output, target):
        return ((output - target) ** 2).mean() * add()

    def transform(x):
        return x * add()

    net = nn.Sequential(nn.Linear(4, 1))
    arguments = {"optimizer": {"optimizer": "adam", "lr": 0.01}, "loss": nn.MSELoss()}
    if place == "training_step":
        arguments["training_step"] = step
    elif place == "loss":
        arguments["loss"] = loss
    elif place == "train_transform":
        arguments["train_transform"] = transform
    else:
        features = {}
        net[0].register_forward_hook(lambda module, inputs, output: features.update(y=output))

        def decayed(output, target):
            center.add_(0.01)
            return ((features["y"] * (1 + center) - target) ** 2).mean() * add()

        arguments["loss"] = decayed
    return net, arguments


CLOSURES = ["training_step", "loss", "train_transform", "a hook"]


@pytest.mark.parametrize("place", CLOSURES)
def test_functions_keep_what_they_keep_in_a_loop(tmp_path, engine, place):
    net, arguments = closures(place)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    transform = arguments.get("train_transform", lambda x: x)
    for start in [*range(0, len(X), BATCH)] * 4:
        x = transform(X[start : start + BATCH])
        y = Y[start : start + BATCH]
        optimizer.zero_grad()
        step = arguments.get("training_step")
        loss = arguments["loss"](net(x), y) if step is None else step(net, (x, y))
        loss.backward()
        optimizer.step()
    built_with = closures(place)
    for epochs in (2, 4):
        trainer = DistributedTrainer(1, engine=engine, threads=1, seed=0)
        trainer.build(built_with[0], **built_with[1])
        trainer.fit(
            *(X, Y),
            num_epochs=epochs,
            batch_size=BATCH,
            shuffle=None,
            shuffle_block_data=False,
            progress=False,
            callbacks=[Checkpoint(tmp_path)],
            resume=True,
        )
    assert_alike(trainer, net)


def test_workers_of_one_process_share_no_cells():
    alone = [run_alone(X[:20], Y[:20]), run_alone(X[20:], Y[20:])]
    net, arguments = closures("loss")
    trainer = DistributedTrainer(2, engine="serial", threads=1, seed=0)
    trainer.build(net, **arguments)
    options = {"batch_size": BATCH, "shuffle": None, "shuffle_block_data": False}
    trainer.fit(X, Y, num_epochs=2, progress=False, merge=Merge(every=0), **options)
    for name, array in trainer.get_parameters().items():
        mean = (alone[0][name].astype(float) + alone[1][name]) / 2
        assert np.array_equal(array, mean.astype(np.float32))
    contents = [cell.cell_contents for cell in arguments["loss"].__closure__]
    assert all(not filled for filled in contents if isinstance(filled, list))


def run_alone(x, y):
    net, arguments = closures("loss")
    trainer = DistributedTrainer(1, engine="serial", threads=1, seed=0)
    trainer.build(net, **arguments)
    options = {"batch_size": BATCH, "shuffle": None, "shuffle_block_data": False}
    trainer.fit(x, y, num_epochs=2, progress=False, merge=Merge(every=0), **options)
    return trainer.get_parameters()


COUNT = 0
LOSSES = []
NUMBERS = np.random.default_rng(0)
MEAN = torch.zeros(1)
CONSTANTS = {"scale": 2.0}
PART = Part()


def counts(net, batch, context):
    global COUNT
    COUNT += 1
    return plain(net, batch, context)


def lists(net, batch, context):
    loss = plain(net, batch, context)
    LOSSES.append(loss.item())
    return loss


def draws(net, batch, context):
    return plain(net, batch, context) * NUMBERS.random()


def averages(net, batch, context):
    MEAN.lerp_(batch[0].mean(), 0.1)
    return plain(net, batch, context)


def changes_an_object(net, batch, context):
    PART.total += 1
    return plain(net, batch, context)


def helped(net, batch, context):
    return counts(net, batch, context)


def plain(net, batch, context):
    x, y = batch
    return ((net(x) - y) ** 2).mean() * CONSTANTS["scale"]


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (counts, "COUNT"),
        (lists, "LOSSES"),
        (draws, "NUMBERS"),
        (averages, "MEAN"),
        (changes_an_object, "PART"),
        (helped, "COUNT"),
        (plain, None),
    ],
)
def test_globals(raises, step, name):
    trainer = DistributedTrainer(1, engine="serial", threads=1, seed=0)
    optimizer = {"optimizer": "adam", "lr": 0.1}
    trainer.build(nn.Linear(4, 1), optimizer, training_step=step)
    if name is None:
        trainer.fit(X, Y, num_epochs=2, batch_size=BATCH, progress=False)
        return
    with raises(TypeError, name):
        trainer.fit(X, Y, num_epochs=1, batch_size=BATCH, progress=False)


COUNTING = """
import numpy as np
from torch import nn
from compss_train import BufferSpec, DistributedTrainer, LocalEngine, Simulations

COUNT = 0


class Counting(nn.Linear):
    def forward(self, x):
        global COUNT
        COUNT += 1
        return super().forward(x)


def simulate(value):
    for step in range(20):
        yield np.float32([value, step]), np.float32([value])


engine = LocalEngine(1)
for method in ("fit", "fit_online"):
    trainer = DistributedTrainer(1, engine=engine, seed=0)
    trainer.build(Counting(2, 1), {"optimizer": "sgd", "lr": 0.001}, "mse")
    try:
        if method == "fit":
            x = np.zeros((20, 2), np.float32)
            trainer.fit(x, x[:, :1], num_epochs=2, batch_size=5, progress=False)
        else:
            buffer = BufferSpec("FIFO", capacity=20)
            simulations = Simulations(simulate, [1.0])
            trainer.fit_online(simulations, buffer=buffer, batch_size=5, progress=False)
    except TypeError as error:
        print(method, error)
engine.shutdown()
"""


@pytest.mark.usefixtures("forked_processes")
def test_globals_of_a_program(tmp_path, capsys):
    """The functions of a program's own file are others in each pickle, as are its variables."""
    program = tmp_path / "program.py"
    program.write_text(COUNTING)
    runpy.run_path(str(program), run_name="__main__")
    [of_fit, of_online_fit] = capsys.readouterr().out.splitlines()
    assert of_fit.startswith("fit the global variable 'COUNT', which Counting.forward uses")
    assert of_online_fit.startswith("fit_online the global variable 'COUNT'")
