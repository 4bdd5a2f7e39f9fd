"""Fits on data sets that are objects: the numbers are those of the same samples in arrays, on every
engine.
"""

import random
import re
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from compss_train import BufferSpec, Merge, PartialShuffle, Samples, Schedule
from compss_train.callbacks import Checkpoint
from compss_train.data.order import transform_seed
from compss_train.model.devices import random_state
from tests.helpers.callbacks import StopAfter
from tests.helpers.cases import slow
from tests.helpers.models import MODES, SGD, assert_same_bits, awkward_net, blocked, mlp
from tests.helpers.plain_loop import OPTIMIZERS, plain_steps
from tests.helpers.small_fits import X, Y, fit, trainer_of
from tests.helpers.tolerances import loss_error, output_error


class Pairs(Dataset):
    """(x, y) by number."""

    def __init__(self, x=X, y=Y):
        self.x = x
        self.y = y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, number):
        return self.x[number], self.y[number]


class Named(Pairs):
    def __getitem__(self, number):
        return {
            "text": "unused",
            "features": torch.from_numpy(self.x[number]),
            "label": int(self.y[number]),
        }


class Noisy(Pairs):
    """Draws from all generators."""

    def __getitem__(self, number):
        noise = torch.randn(6).numpy() + np.random.normal(size=6) + random.random()
        return (self.x[number] + noise).astype(np.float32), self.y[number]


class Stream(IterableDataset):
    """The samples in their order, sharded as torch's documentation shows it; a draw of torch is
    added to each.
    """

    def __init__(self, x=X, y=Y, noise=0.0):
        self.x = x
        self.y = y
        self.noise = noise

    def __iter__(self):
        info = get_worker_info()
        for number in range(
            0 if info is None else info.id, len(self.x), 1 if info is None else info.num_workers
        ):
            yield self.x[number] + self.noise * torch.randn(6).numpy(), self.y[number]


IN_BLOCKS = Samples(Pairs(), blocks=7)
NAMED = Samples(Named(), x="features", y="label", blocks=7)
WAYS = [
    *MODES,
    {"shuffle": "total"},
    {"shuffle": PartialShuffle()},
    {"merge": Merge(every=2, unit="batches")},
    {"buffer": BufferSpec("FIRO", 12, threshold=6)},
    {"sample_weight": np.linspace(0.5, 2, len(X))},
]


def after(data, engine="serial", **options):
    trainer = trainer_of(engine=engine)
    fit(trainer, data=data, **options)
    return trainer


@pytest.mark.parametrize("number", [*slow(0, 2), 1, *range(3, len(WAYS))])
def test_samples_by_number_are_arrays(engine, number):
    ours = after(((IN_BLOCKS, NAMED)[number % 2],), engine, **WAYS[number])
    theirs = after(None, **WAYS[number])
    assert_same_bits(ours.get_parameters(), theirs.get_parameters())
    assert [record["loss"] for record in ours.history] == [
        record["loss"] for record in theirs.history
    ]


class Drawing(Pairs):
    """Draws from generators of its own."""

    def __init__(self):
        super().__init__()
        self.generator = np.random.default_rng(0)
        self.transform = partial(jittered, torch.Generator().manual_seed(0))

    def __getitem__(self, number):
        x, y = super().__getitem__(number)
        return self.transform(x + self.generator.normal(size=6).astype(np.float32)), y


class DrawingStream(Stream):
    def __init__(self):
        super().__init__()
        self.generator = random.Random(0)

    def __iter__(self):
        for x, y in super().__iter__():
            yield x + np.float32(self.generator.random()), y


def jittered(generator, x):
    return x + torch.randn(6, generator=generator).numpy()


@pytest.mark.parametrize("kind", [Drawing, DrawingStream])
def test_draws_from_generators_of_a_data_set_are_seeded(engine, kind, tmp_path):
    """They do not depend on the process, the engine or a resume."""

    def drawn(engine="serial", epochs=3, **options):
        trainer = trainer_of(engine=engine, net=mlp)
        fit(trainer, data=(kind(),), validation_data=Drawing(), num_epochs=epochs, **options)
        return trainer

    theirs = drawn()
    begun = trainer_of(engine=engine, net=mlp)
    fit(begun, Checkpoint(tmp_path), data=(kind(),), validation_data=Drawing(), num_epochs=1)
    for ours in (drawn(engine), drawn(engine, resume=tmp_path)):
        assert_same_bits(ours.get_parameters(), theirs.get_parameters())
        assert ours.history[-1]["val_loss"] == theirs.history[-1]["val_loss"]


class Staged(Pairs):
    """Is told the epoch, on which samples and their draws depend."""

    scale = 0.0

    def set_epoch(self, epoch):
        self.scale = 1.0 + epoch
        self.generator = np.random.default_rng(epoch)

    def __getitem__(self, number):
        x, y = super().__getitem__(number)
        noise = self.generator.normal(size=6) / 10
        return (self.scale * x + noise).astype(np.float32), y


@pytest.mark.parametrize(
    "data",
    [
        Staged(),
        Subset(Staged(), range(50)),
        ConcatDataset([Staged(X[:20], Y[:20]), Staged(X[20:], Y[20:])]),
    ],
    ids=lambda data: type(data).__name__,
)
def test_a_data_set_is_told_each_epoch(engine, data, tmp_path):
    """The data set that was given stays as it is, whatever else reads it at the same time."""

    def fitted(engine, **options):
        return after((data,), engine, num_epochs=3, validation_data=data, **options)

    begun = trainer_of(engine=engine)
    merge = Merge(every=1, unit="blocks")
    fit(begun, Checkpoint(tmp_path), StopAfter(4), data=(data,), merge=merge, num_epochs=3)
    ours = fitted(engine, merge=merge)
    resumed = fitted(engine, merge=merge, resume=tmp_path)
    once = trainer_of()
    for _ in range(3):
        fit(once, data=(data,), merge=merge, num_epochs=1)
    for theirs in (once, fitted("serial", merge=merge), resumed):
        assert_same_bits(ours.get_parameters(), theirs.get_parameters())
    parts = getattr(data, "datasets", [getattr(data, "dataset", data)])
    assert all("scale" not in vars(part) for part in parts)


def test_the_epochs_of_a_data_set_are_those_of_a_loop():
    class Scaled(Pairs):
        def set_epoch(self, epoch):
            self.x = X * (1 + epoch)

    told = after((Scaled(),), num_epochs=2)
    by_hand = trainer_of()
    for epoch in range(2):
        fit(by_hand, data=(X * (1 + epoch), Y), num_epochs=1)
    assert_same_bits(told.get_parameters(), by_hand.get_parameters())


def test_data_sets_are_evaluated_and_predicted_with(engine):
    trainer = trainer_of(engine=engine)
    arrays = trainer_of()
    for data in (
        Pairs(),
        DataLoader(Pairs(), batch_size=16),
        TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
    ):
        assert trainer.evaluate(data, batch_size=16) == arrays.evaluate(X, Y, batch_size=16)
        np.testing.assert_array_equal(
            trainer.predict(data, batch_size=16), arrays.predict(X, batch_size=16)
        )
    fit(
        trainer, data=(Pairs(),), num_epochs=1, validation_data=DataLoader(Pairs(), batch_size=1024)
    )
    assert trainer.history[-1]["val_loss"] == trainer.evaluate(X, Y)["loss"]


class SamplesOnAxis1(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.LSTM(6, 3)

    def forward(self, x):
        return self.recurrent(x)[0]


class WithStates(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.LSTM(6, 3, batch_first=True)

    def forward(self, x):
        return self.recurrent(x)


def on_axis_1(samples):
    return torch.stack([torch.from_numpy(x).expand(4, 6) for x, _ in samples], dim=1)


def on_axis_0(samples):
    return on_axis_1(samples).transpose(0, 1)


@pytest.mark.parametrize(
    ("net", "collate", "shape"),
    [(SamplesOnAxis1, on_axis_1, (4, 19, 3)), (WithStates, on_axis_0, (1, 19, 3))],
)
def test_outputs_without_a_row_for_each_sample_are_not_joined(net, collate, shape):
    trainer = trainer_of(net=net, loss=None, metric=None, training_step=lambda *_: None)
    samples = Samples(Pairs(), collate=collate)
    match = re.escape(f"output of shape {shape} for a batch of 19 samples")
    with pytest.raises(ValueError, match=match):
        trainer.predict(samples)


def test_a_loader_has_the_size_of_batches():
    ours = trainer_of()
    theirs = trainer_of()
    ours.fit(DataLoader(Pairs(), batch_size=6, shuffle=True), num_epochs=2, progress=False)
    theirs.fit(X, Y, batch_size=6, num_epochs=2, progress=False)
    assert_same_bits(ours.get_parameters(), theirs.get_parameters())
    ours.fit(DataLoader(Pairs(), batch_size=9), num_epochs=1, batch_size=6, progress=False)
    theirs.fit(X, Y, batch_size=6, num_epochs=1, progress=False)
    assert_same_bits(ours.get_parameters(), theirs.get_parameters())
    with pytest.raises(ValueError, match="give exactly one of them"):
        ours.fit(Pairs(), num_epochs=1)


def test_each_sample_has_draws_of_its_own(engine):
    """The plain loop seeds all generators for each sample; the network's draws are as if there were
    no others.
    """
    trainer = trainer_of(engine=engine, workers=1, optimizer=SGD, seed=3)
    fit(trainer, data=(Noisy(),), num_epochs=2, shuffle=None, shuffle_block_data=False)

    def seeded(epoch, number):
        with random_state(transform_seed(3, epoch, 0, number), "cpu"):
            return Noisy()[number]

    in_batches = [
        (epoch, numbers) for epoch in range(2) for numbers in np.array_split(np.arange(57), 10)
    ]
    batches = (
        zip(*(seeded(epoch, number) for number in numbers), strict=True)
        for epoch, numbers in in_batches
    )
    assert_same_bits(
        trainer.get_parameters(), plain_steps(awkward_net(), OPTIMIZERS[0][1], batches, seed=3)
    )


def test_a_stream_is_sharded_by_worker(engine):
    """Shard n has every third sample, so that a fit of three workers is one on three blocks in
    their order.
    """
    order = np.concatenate([np.arange(shard, 57, 3) for shard in range(3)])
    options = {"shuffle": None, "shuffle_block_data": False, "num_epochs": 2, "batch_size": 19}
    theirs = after(blocked(X[order], Y[order], 3), **options)
    for stream in (Stream(), Samples(Stream(), size=57)):
        ours = after((stream,), engine, **options)
        assert_same_bits(ours.get_parameters(), theirs.get_parameters())
        assert [record["samples"] for record in ours.history] == [57, 57]


def test_streams_have_as_many_samples_as_they_have(engine):
    trainer = trainer_of(engine=engine)
    fit(trainer, data=(Samples(Stream(X[:50], Y[:50]), size=300),), num_epochs=2)
    assert [record["samples"] for record in trainer.history] == [50, 50]
    fit(trainer, data=(Samples(Stream(), size=30),), num_epochs=1)
    assert trainer.history[-1]["samples"] == 30
    # In other batches.
    outputs, expected = (trainer.predict(data, batch_size=10) for data in (Stream(), X))
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=output_error(trainer.model(), X))
    expected = trainer.evaluate(X, Y)["loss"]
    assert trainer.evaluate(Stream())["loss"] == pytest.approx(
        expected, abs=loss_error(np.float32, len(X))
    )


def test_a_loaders_worker_init_fn_prepares_its_stream():
    class Range(IterableDataset):
        first = 0
        last = 57

        def __iter__(self):
            return iter([(X[number], Y[number]) for number in range(self.first, self.last)])

    def shard(worker):
        info = get_worker_info()
        each = 57 // info.num_workers
        info.dataset.first, info.dataset.last = worker * each, (worker + 1) * each

    loader = DataLoader(Range(), batch_size=6, drop_last=True, num_workers=2, worker_init_fn=shard)
    options = {"shuffle": None, "shuffle_block_data": False}
    first = np.arange(57) % 19 < 18  # the last batch of each has one sample
    kept = blocked(X[first], Y[first], 3)
    assert_same_bits(
        after((loader,), **options).get_parameters(), after(kept, **options).get_parameters()
    )


def text_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(5, 3), nn.AdaptiveAvgPool2d((1, 3)), nn.Flatten())


def lengths(pairs):
    xs, ys = zip(*pairs, strict=True)
    return torch.tensor([len(x) for x in xs]).float()[:, None], torch.tensor(np.array(ys))


@pytest.mark.parametrize(("net", "collate"), [(text_net, None), (lambda: mlp(inputs=1), lengths)])
def test_sequences_of_data_sets_are_padded_like_lists(net, collate):
    texts = [np.arange(1 + number % 5) for number in range(20)]
    kinds = np.arange(20) % 3
    fits = []
    for data in ((Pairs(texts, kinds),), (texts, kinds)):
        fits.append(fit(trainer_of(net=net, workers=2, collate=collate), data=data))
    assert_same_bits(*fits)


class Unpicklable(Pairs):
    def __init__(self):
        super().__init__()
        self.open = (number for number in range(3))


class Lazy(Pairs):
    """Opens a file on first use, which cannot be pickled then."""

    file = None

    def __getitem__(self, number):
        if self.file is None:
            self.file = (number for number in range(3))
        return super().__getitem__(number)


def test_what_is_opened_on_first_use_does_not_travel(shared_local):
    assert_same_bits(
        after((Samples(Lazy(), blocks=7),), shared_local).get_parameters(),
        after(None).get_parameters(),
    )
    joined = ConcatDataset([Subset(Lazy(), range(40)), Subset(Lazy(), range(40, 57))])
    assert_same_bits(
        after((Samples(joined, blocks=7),), shared_local).get_parameters(),
        after(None).get_parameters(),
    )
    with pytest.raises(TypeError, match=r"dataset\.dataset\.open .*cannot be pickled"):
        after((Unpicklable(),), shared_local)


class Empty(IterableDataset):
    def __iter__(self):
        return iter(())


class Failing(Pairs):
    def __getitem__(self, number):
        raise OSError("no such image")


def loader(**options):
    return (DataLoader(Pairs(), **options),)


REFUSED = {
    "has targets in them|whose samples have targets in them": ((Pairs(), Y), {}),
    "buffer= does not suit an IterableDataset": ((Stream(),), {"buffer": BufferSpec("FIFO", 12)}),
    "shuffle='total' does not suit an IterableDataset": ((Stream(),), {"shuffle": "total"}),
    r"Merge\(unit='batches'\), .* without the number .* Samples\(dataset, size=": (
        (Stream(),),
        {"merge": Merge(every=2, unit="batches")},
    ),
    "num_batches_per_worker=2 .* without the number": ((Stream(),), {"num_batches_per_worker": 2}),
    "sample_weight needs numbered samples": ((Stream(),), {"sample_weight": np.ones(57)}),
    "the IterableDataset gave no samples": ((Empty(),), {}),
    "no such image[^$]*sample 0 of a Failing": ((Failing(),), {}),
    r"a sample holds the str 'unused', .*x=\.\.\., y=": ((Named(),), {}),
    "holds samples and targets; give it as x": (({"one": Pairs()}, Y), {}),
    "WeightedRandomSampler.*sample_weight=": (
        loader(sampler=WeightedRandomSampler(np.ones(57), 57), batch_size=6),
        {},
    ),
    "batch_size=None": (loader(batch_size=None), {}),
    "batch_sampler=list": (loader(batch_sampler=[[0, 1], [2]]), {}),
    "its processes are not used: leave it out. Random draws of a Pairs are seeded": (
        loader(worker_init_fn=print, batch_size=6),
        {},
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_trained_is_an_error(message):
    data, options = REFUSED[message]
    with pytest.raises((TypeError, ValueError, OSError)) as caught:
        after(data, **options)
    assert re.search(
        message, "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    )


@pytest.mark.parametrize(
    "schedule", [Schedule(float, unit="batches"), Schedule(float, steps=2)], ids=repr
)
def test_a_schedule_that_is_stepped_inside_epochs_needs_the_number_of_samples(schedule):
    shown = re.escape(f"Schedule(steps={schedule.steps}, unit='{schedule.unit}')")
    with pytest.raises(ValueError, match=f"schedule={shown}: without the number .* size="):
        trainer_of(engine="serial", schedule=schedule).fit(
            Stream(), num_epochs=1, batch_size=6, progress=False
        )


@pytest.mark.filterwarnings("ignore:.*float64 becomes float32")
def test_frames_are_arrays():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X.astype(np.float64), columns=list("abcdef"))
    classes = pandas.Series(Y).map({0: "x", 1: "y", 2: "z"}).astype("category")
    ours = trainer_of()
    theirs = trainer_of()
    with pytest.warns(UserWarning, match="^float64 becomes float32"):
        fit(ours, data=(frame, classes), num_epochs=1, validation_data=(frame, classes))
    fit(theirs, data=(X, Y), num_epochs=1, validation_data=(X, Y))
    assert_same_bits(ours.get_parameters(), theirs.get_parameters())
    assert ours.history[-1]["val_loss"] == theirs.history[-1]["val_loss"]
    np.testing.assert_array_equal(ours.predict(frame), theirs.predict(X))


@pytest.mark.parametrize("shuffled", [False, True])
def test_data_sets_of_hugging_face_are_arrays(tmp_path, shuffled):
    datasets = pytest.importorskip("datasets")
    features = {
        "x": datasets.List(datasets.Value("float32"), length=6),
        "label": datasets.Value("int64"),
    }
    table = datasets.Dataset.from_dict(
        {"x": X.tolist(), "label": Y.tolist()}, features=datasets.Features(features)
    )
    table.save_to_disk(str(tmp_path))
    dataset = datasets.load_from_disk(str(tmp_path))
    x = X
    y = Y
    if shuffled:
        dataset = dataset.shuffle(seed=0)
        x = np.array(dataset["x"], np.float32)
        y = np.array(dataset["label"])
    ours = after((Samples(dataset, blocks=7),))
    theirs = after(blocked(x, y, 7))
    assert_same_bits(ours.get_parameters(), theirs.get_parameters())
    assert ours.evaluate(dataset) == theirs.evaluate(x, y)
    stream = Samples(dataset.to_iterable_dataset(num_shards=3), drop_last=True)
    fit(ours, data=(stream,), num_epochs=1, batch_size=19)
    assert ours.history[-1]["samples"] == 57
    with pytest.raises(TypeError, match=r"a DatasetDict; .* one split, such as dataset\['train'\]"):
        ours.evaluate(datasets.DatasetDict(train=dataset))


class Graph:
    """A sample whose parts have lengths of their own, and which can be iterated over."""

    def __init__(self, nodes, label):
        self.nodes = nodes
        self.label = label

    def __iter__(self):
        yield "nodes", self.nodes
        yield "label", self.label


class Graphs:
    """A batch of graphs, as one graph of all their nodes."""

    def __init__(self, graphs):
        self.nodes = torch.cat([graph.nodes for graph in graphs])
        lengths = torch.tensor([len(graph.nodes) for graph in graphs])
        self.owners = torch.repeat_interleave(lengths)
        self.label = torch.tensor([graph.label for graph in graphs])


class NetOfGraphs(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.inner = nn.Linear(6, 8)
        self.output = nn.Linear(8, 3)

    def forward(self, graphs):
        sums = torch.zeros(len(graphs.label), 8)
        return self.output(sums.index_add(0, graphs.owners, self.inner(graphs.nodes).tanh()))


def graph_step(model, batch, context):
    return nn.functional.cross_entropy(model(batch), batch.label)


def graph_trainer(engine="serial", workers=1):
    trainer = trainer_of(engine, workers, net=NetOfGraphs)
    return (
        trainer.build(NetOfGraphs(), SGD, training_step=graph_step, validation_step=graph_step)
        or trainer
    )


GRAPHS = [
    Graph(torch.from_numpy(X[start : start + 1 + start % 4]), start % 3) for start in range(48)
]


@pytest.mark.parametrize(
    "data", [Samples(GRAPHS, collate=Graphs), DataLoader(GRAPHS, batch_size=8, collate_fn=Graphs)]
)
def test_objects_are_samples_where_a_function_makes_batches(engine, data):
    net = NetOfGraphs()
    optimizer = torch.optim.SGD(net.parameters(), lr=SGD["lr"], momentum=SGD["momentum"])
    for _ in range(2):
        for start in range(0, len(GRAPHS), 8):
            optimizer.zero_grad()
            graph_step(net, Graphs(GRAPHS[start : start + 8]), None).backward()
            optimizer.step()
    trainer = graph_trainer(engine)
    still = {"shuffle": None, "shuffle_block_data": False, "progress": False}
    trainer.fit(data, num_epochs=2, batch_size=8, validation_data=data, **still)
    for name, parameter in net.named_parameters():
        assert np.array_equal(trainer.get_parameters()[name], parameter.detach().numpy())
    assert trainer.predict(data).shape == (48, 3)


def test_objects_without_such_a_function_are_errors():
    graphs = ConcatDataset([GRAPHS])
    with pytest.raises(TypeError, match=r"a sample holds a Graph, .*Samples\(dataset, collate="):
        graph_trainer().fit(graphs, num_epochs=1, batch_size=8, progress=False)
