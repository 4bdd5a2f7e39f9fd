"""Parametrized networks are copied, pickled and trained as any other."""

import copy
import pickle
import weakref
from functools import partial

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, spectral_norm, weight_norm

from compss_train import DistributedTrainer
from compss_train.model.copies import CopyTemplate, copy_network, normalize_spectral_vectors
from compss_train.model.parameters import load_into
from tests.helpers.models import ADAM, assert_same_bits, blocked, classification, state_arrays
from tests.helpers.plain_loop import plain_loop

pytestmark = pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
X, Y = classification(samples=57)


class Doubled(nn.Module):
    """A parametrization of one's own."""

    def forward(self, weight):
        return 2 * weight

    def right_inverse(self, weight):
        return weight / 2


def own(layer):
    parametrize.register_parametrization(layer, "weight", Doubled())
    parametrize.register_parametrization(layer, "bias", Doubled())
    return parametrize.register_parametrization(layer, "weight", Doubled())


KINDS = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "own": own,
    "old weight_norm": weight_norm,
    "old spectral_norm": spectral_norm,
}


def net_of(kind):
    torch.manual_seed(7)
    return nn.Sequential(KINDS[kind](nn.Linear(6, 6)), nn.BatchNorm1d(6), nn.ReLU(), KINDS[kind](nn.Linear(6, 3)))


def outputs(net):
    return net.eval()(torch.from_numpy(X)).detach().numpy().tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_is_pickled_and_is_the_same_network(kind):
    net = net_of(kind)
    net(torch.from_numpy(X))  # leaves computed tensors behind
    copied = copy_network(net)
    there = pickle.loads(cloudpickle.dumps(copy.deepcopy(copied)))
    for other in (copied, there, copy_network(there)):
        assert_same_bits(state_arrays(other), state_arrays(net))
        assert outputs(other) == outputs(net)
        assert [parametrize.is_parametrized(part) for part in other] == [
            parametrize.is_parametrized(part) for part in net
        ]
    with torch.no_grad():
        next(there.parameters()).add_(1)
    assert outputs(there) != outputs(net) == outputs(copied)


@pytest.mark.parametrize("kind", KINDS)
def test_one_worker_is_the_plain_loop(engine, kind):
    net = net_of(kind)
    trainer = DistributedTrainer(1, engine=engine, seed=5, threads=1)
    trainer.build(net, ADAM, "cross_entropy")
    still = {"shuffle": None, "shuffle_block_data": False, "progress": False}
    ours = trainer.fit(*blocked(X, Y, 3), num_batches_per_worker=4, num_epochs=3, **still)
    plain = plain_loop(copy_network(net), lambda p: torch.optim.Adam(p, lr=0.01), X, Y, 3, 4, 3, seed=5)
    assert_same_bits(ours, plain)
    assert trainer.predict(X).tobytes() == outputs(trainer.model())


@pytest.mark.parametrize("kind", ["spectral_norm", "old spectral_norm"])
def test_the_mean_of_spectral_vectors_gets_the_length_one(kind):
    """Evaluation divides by u·Wv: a mean of vectors that is shorter than 1 would make the weights too large."""
    means = {name: array.copy() for name, array in state_arrays(net_of(kind)).items()}
    vectors = [name for name in means if name.endswith(("_u", "_v"))]
    assert len(vectors) == 4
    for name in vectors:
        means[name] *= 0.7
    net = net_of(kind)
    load_into(net, means)
    for name, array in state_arrays(net).items():
        expected = means[name] / 0.7 if name in vectors else means[name]
        np.testing.assert_allclose(array, expected, rtol=1e-6)
    np.testing.assert_allclose(
        net.eval()(torch.from_numpy(X)).detach(), net_of(kind).eval()(torch.from_numpy(X)).detach(), rtol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_spectral_vectors_of_length_one_keep_their_bits(dtype):
    net = net_of("spectral_norm").to(dtype)
    before = copy.deepcopy(net.state_dict())
    normalize_spectral_vectors(net)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    net[0].parametrizations.weight[0]._u.zero_()
    normalize_spectral_vectors(net)
    assert not net[0].parametrizations.weight[0]._u.any()


def fill(module):
    with torch.no_grad():
        module.weight.fill_(2)


class Counts(nn.Module):
    """A network with whatever modules keep: counters, functions, arrays, aliases and references."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = self.first  # the same module
        self.head = nn.Linear(3, 3, bias=False)
        self.head.weight = self.first.weight  # the same parameter
        self.calls, self.seen = 0, [[]]
        self.act, self.init = torch.relu, partial(fill, self.head)
        self.double = lambda x: 2 * x
        self.table = np.arange(6).reshape(2, 3)
        self.own = weakref.ref(self.head)
        self.register_buffer("rows", torch.arange(3.0), persistent=False)
        self.view = self.rows[1:]

    def forward(self, x):
        self.calls += 1
        self.seen[0].append(len(x))
        return self.double(self.act(self.second(self.first(x)))) @ self.head.weight + self.rows


def gru():
    return nn.GRU(3, 4, num_layers=2, batch_first=True)


NETS = {
    "mlp": lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 3)),
    "recurrent": gru,
    "attention": lambda: nn.TransformerEncoderLayer(3, 1, 8, batch_first=True),
    "own": Counts,
    "parametrized": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
    "traced": lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU())),
    "scripted": lambda: torch.jit.script(nn.Linear(3, 3)),
}


def outputs_of(net):
    torch.manual_seed(1)
    returned = net(torch.linspace(-1, 1, 12).reshape(2, 2, 3) if isinstance(net, nn.GRU) else batch())
    return returned[0] if isinstance(returned, tuple) else returned


def batch():
    return torch.linspace(-1, 1, 12).reshape(4, 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", NETS)
def test_networks_are_copied_as_by_deepcopy(kind):
    net = NETS[kind]()
    template = CopyTemplate(net)
    first, second, deep = template.copy({}), template.copy({}), copy.deepcopy(net)
    expected = outputs_of(copy.deepcopy(net))
    with torch.no_grad():
        for tensor in first.parameters():
            tensor.add_(1)
    assert [type(each).__name__ for each in second.modules()] == [type(each).__name__ for each in deep.modules()]
    for other in (second, deep):
        assert_same_bits(state_arrays(other), state_arrays(net))
        assert [name for name, _ in other.named_parameters()] == [name for name, _ in net.named_parameters()]
        assert torch.equal(outputs_of(other), expected)
    assert not torch.equal(outputs_of(first), expected)


def test_a_copy_has_the_same_aliases_and_shares_nothing():
    net = Counts()
    net(batch())
    own = CopyTemplate(net).copy({})
    assert own.first is own.second is not net.first
    assert own.head.weight is own.first.weight is not net.first.weight
    assert own.init.args[0] is own.head
    assert own.double is net.double
    assert (own.own() is net.head) == (copy.deepcopy(net).own() is net.head)
    own.rows[1] = 9
    assert own.view[0] == 9
    own(batch())
    own.table[0, 0] = 5
    assert (net.calls, net.seen, net.table[0, 0], own.calls, own.seen) == (1, [[4]], 0, 2, [[4, 4]])
