"""Two objects have the same details if they were made from the same arguments, and else others."""

import copy
import functools
import operator
import pickle

import cloudpickle
import numpy as np
import pytest
import torch
import torch.fx
from torch import nn

from compss_train.model import losses
from compss_train.training.description import CODE, details
from tests.helpers.models import awkward_net
from tests.helpers.shared_engine import result_of_process


class Weighted:
    def __init__(self, weight, names=("a",)):
        self.weight = weight
        self.names = set(names)
        self.itself = self

    def __call__(self, output, target):
        return self.weight * (output - target).square().mean()

    def method(self, output, target):
        return self(output, target)


class Body(nn.Module):
    def __init__(self, width=8, dropout=0.1):
        super().__init__()
        self.width = width
        self.layers = nn.ModuleList([nn.Dropout(dropout), nn.Linear(4, width)])
        self.activation = torch.relu
        self.cache = torch.zeros(3)
        self.register_buffer("mask", torch.ones(width), persistent=False)


def closing_over(value):
    return lambda output, target: value * (output - target).abs().mean()


@pytest.mark.parametrize(
    ("make", "others", "differing"),
    [
        (
            nn.CrossEntropyLoss,
            [{"label_smoothing": 0.3}, {"label_smoothing": 0.05}],
            ["it.label_smoothing"],
        ),
        (
            nn.CrossEntropyLoss,
            [{"weight": torch.ones(3)}, {"weight": torch.arange(3.0)}],
            ["it.weight"],
        ),
        (Weighted, [{"weight": 1}, {"weight": 5}], ["it.weight"]),
        (
            Weighted,
            [{"weight": 1, "names": "ab"}, {"weight": 1, "names": "bc"}],
            ["it.names.0", "it.names.1"],
        ),
        (
            lambda weight: Weighted(weight).method,
            [{"weight": 1}, {"weight": 5}],
            ["it.self.weight"],
        ),
        (
            lambda weight: Weighted(np.array(weight)),
            [{"weight": [1]}, {"weight": [5]}],
            ["it.weight"],
        ),
        (Body, [{"dropout": 0.1}, {"dropout": 0.5}], ["it.layers.0.p"]),
        (Body, [{"width": 8}, {"width": 16}], ["it.width", "it.layers.1.out_features"]),
        (closing_over, [{"value": 2}, {"value": 3}], ["it.value"]),
        (functools.partial, [{"p": 1}, {"p": 2}], ["it.p"]),
    ],
)
def test_what_differs_is_found_and_nothing_else(make, others, differing):
    make = functools.partial(make, torch.add) if make is functools.partial else make
    one, other = (details("it", make(**options), tensors=make is not Body) for options in others)
    assert [name for name in {**one, **other} if one.get(name) != other.get(name)] == differing
    for made in (make(**others[0]), copy.deepcopy(make(**others[0]))):
        assert details("it", made, tensors=make is not Body) == one


def test_functions_of_one_name_differ_by_their_code():
    assert details("it", lambda x: x + 1) == details("it", lambda x: x + 1)
    one = details("it", lambda x: x + 1)
    other = details("it", lambda x: x + 2)
    assert [name for name in one if one[name] != other[name]] == [f"it.{CODE}"]
    moved = cloudpickle.loads(cloudpickle.dumps(closing_over(2)))
    assert details("it", moved) == details("it", closing_over(2))
    # Later versions may write it differently.
    assert details("it", losses.dice) == {"it": "compss_train.dice"}


def test_a_network_is_described_without_its_values_and_caches():
    net = awkward_net()
    before = details("net", net, tensors=False)
    with torch.no_grad():
        next(net.parameters()).add_(1)
    net.eval()
    assert details("net", net, tensors=False) == before
    assert details("net", pickle.loads(pickle.dumps(net)), tensors=False) == before
    body = Body()
    before = details("net", body, tensors=False)
    body.cache = body.mask = torch.ones(2)
    assert details("net", body, tensors=False) == before
    assert before["net.activation"] == details("net", Body(), tensors=False)["net.activation"]


PROGRAM = """
described = details("it", lambda x: x in {"a", "b", "c", "d"}), details("it", {"a", "b", "c", "d"})
"""


def described():
    names = {"details": details, "__name__": "__main__"}
    exec(compile(PROGRAM, "<string>", "exec"), names)
    return names["described"]


def test_the_details_are_those_of_another_process():
    """Whose sets have another order."""
    assert result_of_process(described) == described()


class Key:
    """Has the ``repr`` of all objects, which is another one in each process."""


def test_keys_of_dicts_have_the_same_names_in_each_process():
    def table():
        return {
            Key(): 1,
            Key(): 2,
            torch.tanh: 3,
            nn.functional.relu: 4,
            nn.Linear: 5,
            (Key(), 0): 6,
        }

    one = details("it", table())
    assert details("it", table()) == one
    assert sorted(one.values()) == [1, 2, 3, 4, 5, 6]
    assert "0x" not in "".join(one)
    assert details("it", {"a": 1, 2: 3, 1.5: 2}) == {"it.a": 1, "it.2": 3, "it.1.5": 2}


def test_traced_networks_are_alike_if_their_graphs_are():
    """Each trace has numbers of its own."""

    def traced(activation):
        return torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), activation, nn.Linear(4, 1)))

    one = details("net", traced(nn.Tanh()), tensors=False)
    assert details("net", traced(nn.Tanh()), tensors=False) == one
    two = torch.fx.symbolic_trace(Twice())
    three = copy.deepcopy(two)
    (node,) = three.graph.find_nodes(op="call_function", target=operator.mul)
    node.args = (node.args[0], 3)
    assert details("net", two, tensors=False) != details("net", three, tensors=False)


class Twice(nn.Module):
    def forward(self, x):
        return x * 2
