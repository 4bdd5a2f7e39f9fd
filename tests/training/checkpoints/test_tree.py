"""Any tree of plain values comes back from JSON and tensors with its types and bits."""

import enum
import json
import re
from collections import namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given
from safetensors.torch import load, save
from torch import nn

from compss_train.training.checkpoints.json_encoding import cut, join
from tests.helpers.models import mlp
from tests.training.checkpoints.trees import assert_same, trees

OPTIMIZERS = [
    kind
    for name, kind in sorted(vars(torch.optim).items())
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
]


def through(value):
    """Return what comes back of a value by way of a JSON text and the bytes of a safetensors file."""
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(cut(value, "", tensors), allow_nan=False)
    held = load(save({name: tensor.clone() for name, tensor in tensors.items()}))
    return join(json.loads(text), held)


@given(trees)
def test_what_is_cut_and_joined_is_the_same(tree):
    assert_same(tree, through(tree))


@pytest.mark.parametrize(
    "tree",
    [
        {"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}},
        {1: torch.zeros(1), "1": torch.ones(1)},
        {"": torch.zeros(1), "x": {"": torch.ones(1)}, "x/": torch.ones(2)},
        {np.int64(1): "one", np.int64(2): "two"},
        {"__metadata__": torch.ones(1)},
        {"\ud800": torch.zeros(1), "\\ud800": torch.ones(1)},
    ],
)
def test_paths_that_read_alike_are_not_mixed_up(tree):
    assert_same(tree, through(tree))


def test_arrays_are_named_by_their_path():
    tensors: dict[str, torch.Tensor] = {}
    cut({"parameters": {"0.weight": np.zeros(2)}, "workers": [{"state": {3: torch.ones(1)}}]}, "", tensors)
    assert list(tensors) == ["parameters/0.weight", "workers/0/state/3"]


Pair = namedtuple("Pair", "first second")


def test_what_is_almost_a_plain_value_becomes_one():
    Colour = enum.IntEnum("Colour", "RED")
    tree = {"pair": Pair(1, torch.Size([2])), "colour": Colour.RED, "text": type("Text", (str,), {})("a")}
    assert_same(through(tree), {"pair": (1, (2,)), "colour": 1, "text": "a"})


UNHELD = {
    "object": object(),
    "set": {1, 2},
    "function": print,
    "complex number": 1j,
    "bytes": b"ab",
    "array of objects": np.array([None, 1]),
    "array of texts": np.array(["a"]),
    "array of dates": np.array(["2024-01-01"], "M8[D]"),
    "array of pairs": np.zeros(2, [("a", "f4"), ("b", "i4")]),
    "array of complex numbers of 128 bits": np.zeros(2, np.complex128),
    "long double": np.longdouble(1),
    "text of numpy": np.str_("a"),
    "tensor of complex numbers of 128 bits": torch.zeros(2, dtype=torch.complex128),
    "sparse tensor": torch.eye(3).to_sparse(),
    "tensor without memory": torch.empty(2, device="meta"),
    "module": nn.Linear(1, 1),
}


@pytest.mark.parametrize("name", UNHELD)
def test_what_cannot_be_held_is_an_error_that_names_its_path(name):
    tensors: dict[str, torch.Tensor] = {}
    with pytest.raises(TypeError, match=rf"^{re.escape(f'callbacks/Mine 1/{name}/0')} is a"):
        cut({"callbacks": {"Mine 1": {name: (UNHELD[name], 1)}}}, "", tensors)


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_the_state_of_every_optimizer_comes_back(kind):
    net = nn.Sequential(nn.EmbeddingBag(5, 6, sparse=True)) if kind is torch.optim.SparseAdam else mlp()
    net = nn.Linear(6, 3, bias=False) if kind.__name__ == "Muon" else net
    more = {"momentum": 0.9} if kind in (torch.optim.SGD, torch.optim.RMSprop) else {}
    optimizer = kind(net.parameters(), lr=0.01, **more)
    x = torch.arange(12).reshape(4, 3) % 5 if kind is torch.optim.SparseAdam else torch.ones(4, 6)

    def closure():
        optimizer.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    state = optimizer.state_dict()
    back = through(state)
    assert_same(back, state)
    kind(net.parameters(), lr=1.0).load_state_dict(back)
    assert state["state"]
