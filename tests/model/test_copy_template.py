"""Copies of a template are those of ``copy.deepcopy``."""

import copy
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from compss_train.model.copies import CopyTemplate
from tests.helpers.models import assert_same_bits, state_arrays


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


def outputs(net):
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
    expected = outputs(copy.deepcopy(net))
    with torch.no_grad():
        for tensor in first.parameters():
            tensor.add_(1)
    assert [type(each).__name__ for each in second.modules()] == [type(each).__name__ for each in deep.modules()]
    for other in (second, deep):
        assert_same_bits(state_arrays(other), state_arrays(net))
        assert [name for name, _ in other.named_parameters()] == [name for name, _ in net.named_parameters()]
        assert torch.equal(outputs(other), expected)
    assert not torch.equal(outputs(first), expected)


def test_a_copy_has_the_aliases_of_the_original_and_shares_nothing():
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
