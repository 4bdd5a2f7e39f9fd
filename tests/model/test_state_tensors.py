"""What is trained and merged does not depend on what a network's ``state_dict`` returns."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

import compss_train
from compss_train import DistributedTrainer
from compss_train._utils.private_names import state_tensors
from compss_train.callbacks import Checkpoint
from compss_train.model import parameters as params
from tests.helpers.models import assert_same_bits, awkward_net, classification

X, Y = classification(samples=48)
SGD = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}
EPOCHS = 3
BATCH = 8


class Mlp(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.width = width
        self.hidden = nn.Linear(6, width)
        self.register_buffer("scale", torch.full((width,), 0.5))
        self.output = nn.Linear(width, 3)

    def forward(self, x):
        return self.output(torch.tanh(self.scale * self.hidden(x)))


class LeavesOut(Mlp):
    """Saves the head alone, as programs do whose first layers come from elsewhere."""

    def state_dict(self, *args, **kwargs):
        entries = super().state_dict(*args, **kwargs)
        return {name: entries[name] for name in entries if name.startswith("output.")}


class HookLeavesOut(Mlp):
    def __init__(self):
        super().__init__()
        self.register_state_dict_post_hook(_without_hidden)


def _without_hidden(module, entries, prefix, metadata):
    for name in [name for name in entries if name.startswith("hidden.")]:
        del entries[name]


class Renames(Mlp):
    def state_dict(self, *args, **kwargs):
        entries = super().state_dict(*args, **kwargs)
        return {f"module.{name}": entry for name, entry in entries.items()}


class Halves(Mlp):
    """Saves copies of half the size."""

    def state_dict(self, *args, **kwargs):
        entries = super().state_dict(*args, **kwargs)
        return {name: entry.half() for name, entry in entries.items()}


class AddsArguments(Mlp):
    """Saves how it was made, as neuraloperator's models do."""

    def state_dict(self, *args, **kwargs):
        entries = super().state_dict(*args, **kwargs)
        entries["_metadata"] = {"width": self.width}
        return entries


class Counts(Mlp):
    """Keeps a number that batches change, and saves it apart."""

    batches = 0

    def forward(self, x):
        self.batches += self.training
        return super().forward(x) / (1 + self.batches / 10)

    def get_extra_state(self):
        return {"batches": self.batches}

    def set_extra_state(self, state):
        self.batches = state["batches"]


class CountsInTensor(Counts):
    def get_extra_state(self):
        return torch.tensor(float(self.batches))

    def set_extra_state(self, state):
        self.batches = int(state)


KINDS = [LeavesOut, HookLeavesOut, Renames, Halves, AddsArguments, Counts, CountsInTensor]


def made(kind, seed=4):
    torch.manual_seed(seed)
    return kind()


def fitted(kind, engine="serial", workers=1, epochs=EPOCHS, seed=4, **options):
    trainer = DistributedTrainer(workers, engine=engine, seed=0, threads=1)
    trainer.build(made(kind, seed), SGD, "cross_entropy")
    still = {"shuffle": None, "shuffle_block_data": False, "progress": False}
    trainer.fit(X, Y, num_epochs=epochs, batch_size=BATCH, **still, **options)
    return trainer


def arrays_of(net):
    return {name: tensor.detach().numpy() for name, tensor in state_tensors(net).items()}


@pytest.mark.parametrize("kind", KINDS)
def test_one_worker_is_the_plain_loop(engine, kind):
    net = made(kind)
    optimizer = torch.optim.SGD(net.parameters(), lr=SGD["lr"], momentum=SGD["momentum"])
    for _ in range(EPOCHS):
        for start in range(0, len(X), BATCH):
            rows = slice(start, start + BATCH)
            optimizer.zero_grad()
            output = net(torch.tensor(X[rows]))
            functional.cross_entropy(output, torch.tensor(Y[rows])).backward()
            optimizer.step()
    trainer = fitted(kind, engine)
    assert_same_bits(trainer.get_parameters(), arrays_of(net))
    x = torch.tensor(X[:BATCH])
    model = trainer.model()
    assert torch.equal(model(x), net.eval()(x))
    entries = model.state_dict()
    expected = net.state_dict()
    assert list(entries) == list(expected)
    for name, entry in expected.items():
        same = torch.equal if isinstance(entry, torch.Tensor) else lambda a, b: a == b
        assert same(entries[name], entry)


@pytest.mark.parametrize("kind", KINDS)
def test_fits_go_on_and_files_hold_all(kind, tmp_path):
    whole = fitted(kind, workers=2)
    fitted(kind, workers=2, epochs=1, callbacks=[Checkpoint(tmp_path / "run")])
    resumed = fitted(kind, workers=2, seed=5, resume=tmp_path / "run")
    assert_same_bits(resumed.get_parameters(), whole.get_parameters())
    whole.save(tmp_path / "net.safetensors")
    loaded = compss_train.load(tmp_path / "net.safetensors", made(kind, seed=6))
    assert_same_bits(arrays_of(loaded), dict(whole.get_parameters()))
    x = torch.tensor(X[:BATCH])
    assert torch.equal(loaded(x), whole.model()(x))


@pytest.mark.parametrize(
    "make",
    [
        awkward_net,
        lambda: spectral_norm(nn.Linear(3, 3)),
        lambda: nn.TransformerEncoderLayer(8, 2, 8, batch_first=True),
        lambda: nn.Sequential(shared := nn.Linear(2, 2), nn.ParameterList([shared.weight]), shared),
        lambda: nn.ParameterDict({"b": torch.ones(1), "a": torch.ones(2)}),
    ],
)
def test_names_and_order_are_those_of_torch(make):
    net = make()
    net.register_buffer("transient", torch.ones(1), persistent=False)
    entries = net.state_dict(keep_vars=True)
    tensors = state_tensors(net)
    assert list(tensors) == list(entries)
    assert all(tensors[name] is entries[name] for name in entries)


@pytest.mark.parametrize("kind", [AddsArguments, Counts])
def test_entries_without_numbers_are_named_and_left_out(kind, tmp_path):
    trainer = fitted(kind)
    entries = made(kind, seed=6).state_dict()
    (name,) = [name for name, entry in entries.items() if not torch.is_tensor(entry)]
    with pytest.warns(UserWarning, match=f"these are not set: '{name}', a dict"):
        trainer.set_parameters(entries)
    expected = arrays_of(made(kind, seed=6))
    assert_same_bits(trainer.get_parameters(), expected)
    torch.save(entries, tmp_path / "net.pt")
    with pytest.warns(UserWarning, match=f"'{name}', a dict"):
        loaded = params.load(tmp_path / "net.pt")
    assert_same_bits(dict(loaded), expected)


def test_lazy_modules_are_errors():
    with pytest.raises(ValueError, match="run one batch through the network first"):
        params.from_module(nn.LazyLinear(3))
