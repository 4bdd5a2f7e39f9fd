"""Encoding and decoding restore any tree of plain values with its types and bits."""

import json
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from safetensors.torch import load, save
from torch import nn

from compss_train.model.saved_state import JsonText, from_json, to_json
from compss_train.training.checkpoints import read_checkpoint, write_checkpoint
from tests.helpers.models import mlp
from tests.training.checkpoints.trees import assert_same, trees

OPTIMIZERS = [
    kind
    for name, kind in sorted(vars(torch.optim).items())
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
]


def round_trip(value):
    """Encode a value to JSON text and the bytes of a safetensors file, and decode it."""
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(to_json(value, "", tensors), allow_nan=False)
    loaded = load(save({name: tensor.clone() for name, tensor in tensors.items()}))
    return from_json(json.loads(text), loaded)


@given(trees)
def test_a_round_trip_restores_any_tree(tree):
    assert_same(tree, round_trip(tree))


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
def test_similar_paths_are_not_mixed_up(tree):
    assert_same(tree, round_trip(tree))


UNSUPPORTED = {
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


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unsupported_value_is_an_error_that_names_its_path(name):
    tensors: dict[str, torch.Tensor] = {}
    with pytest.raises(TypeError, match=rf"^{re.escape(f'callbacks/Mine 1/{name}/0')} is a"):
        to_json({"callbacks": {"Mine 1": {name: (UNSUPPORTED[name], 1)}}}, "", tensors)


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_the_state_of_every_optimizer_is_restored(kind):
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
    back = round_trip(state)
    assert_same(back, state)
    kind(net.parameters(), lr=1.0).load_state_dict(back)
    assert state["state"]


def test_values_that_are_json_already_are_read_like_others(tmp_path):
    content = {"other": {"a": torch.ones(2)}, "history": [{"loss": 0.5, "ended": None}]}
    for tree in (content, {"history": content["history"]}):
        write_checkpoint(tmp_path / "it", {**tree, "history": JsonText(json.dumps(tree["history"]))})
        assert_same(tree, read_checkpoint(tmp_path / "it"))
