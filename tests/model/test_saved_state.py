"""Encoding and decoding restore any tree of plain values with its types and bits."""

import json
import re
from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given
from safetensors.torch import load, save
from torch import nn

from compss_train import DistributedTrainer
from compss_train.model.replica import ModelReplica
from compss_train.model.training_spec import TrainingSpec
from compss_train.model.value_encoding import (
    decode_value,
    encode_value,
    encoded_pieces,
    from_json,
    to_json,
)
from tests.helpers.models import SGD, assert_close, blocked, mlp, state_arrays
from tests.helpers.tolerances import sum_error
from tests.training.checkpoints.trees import assert_same, trees

OPTIMIZERS = [
    kind
    for name, kind in sorted(vars(torch.optim).items())
    if isinstance(kind, type)
    and issubclass(kind, torch.optim.Optimizer)
    and kind is not torch.optim.Optimizer
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
    assert_same(tree, decode_value(encode_value(tree)))


def test_strides_deques_and_dtypes_are_restored():
    dense = torch.arange(24.0).reshape(1, 2, 3, 4)
    tensors = [
        dense.permute(3, 1, 0, 2),
        dense.contiguous(memory_format=torch.channels_last),
        torch.arange(6.0).reshape(2, 3).T,
        torch.tensor(1.0),
        torch.zeros(0, 3),
    ]
    gaps = torch.arange(12.0).reshape(3, 4)[:, ::2]
    value = [*tensors, gaps, deque([torch.ones(1), 2], maxlen=5), deque(), torch.bfloat16]
    for restored in (round_trip(value), decode_value(encode_value(value))):
        assert_same(value[:6], restored[:6])
        assert [tensor.stride() for tensor in restored[:5]] == [
            tensor.stride() for tensor in tensors
        ]
        assert restored[5].is_contiguous()
        assert restored[6:] == value[6:]
        assert restored[6].maxlen == 5


def test_pieces_of_a_large_tensor_share_its_memory():
    large = torch.zeros(1000)
    (_, piece, _) = encoded_pieces({"a": large})
    assert piece.data_ptr() == large.data_ptr()


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
    net = (
        nn.Sequential(nn.EmbeddingBag(5, 6, sparse=True))
        if kind is torch.optim.SparseAdam
        else mlp()
    )
    net = nn.Linear(6, 3, bias=False) if kind.__name__ == "Muon" else net
    options = {"momentum": 0.9} if kind in (torch.optim.SGD, torch.optim.RMSprop) else {}
    optimizer = kind(net.parameters(), lr=0.01, **options)
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


class Seen(nn.Module):
    """Notes the types and layouts that reach the first layer and the loss."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)
        self.notes = []

    def forward(self, x):
        output = self.layer(x)
        self.notes.append(
            (x.dtype, x.is_contiguous(memory_format=torch.channels_last), output.dtype)
        )
        return output


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_precision_and_layout_reach_the_network(precision, layout):
    training_spec = TrainingSpec(
        net=Seen(),
        optimizer=torch.optim.SGD,
        loss=nn.functional.mse_loss,
        precision=precision,
        memory_format=layout,
    )
    replica = ModelReplica(training_spec, state_arrays(Seen()), "cpu", training=True)
    with replica.autocast():
        replica.predict(replica.transformed(torch.rand(2, 3, 5, 5)))
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    assert replica.net.notes == [(torch.float32, layout == "channels_last", dtype)]
    assert training_spec.net.notes == []
    assert {p.dtype for p in replica.net.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "bf16"},
        {"memory_format": "channels_last"},
        {"optimizer": {**SGD, "fused": True}},
    ],
)
def test_faster_options_learn_the_same_to_their_precision(engine, options):
    x = np.random.default_rng(0).normal(size=(64, 3, 8, 8)).astype(np.float32)
    y = (x.mean(axis=(1, 2, 3)) > 0).astype(np.int64)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2)
    )
    results = []
    for extra in ({}, options):
        trainer = DistributedTrainer(2, engine=engine, seed=0, threads=1)
        arguments = {"optimizer": SGD, "loss": "cross_entropy", **extra}
        trainer.build(net, **arguments)
        results.append(trainer.fit(*blocked(x, y, 4), num_epochs=2, batch_size=8))
    # 8 steps, whose momentum repeats a gradient 10 times: three roundings to bfloat16 of gradients
    # of about 1, or sums of all pixels of a batch in single precision.
    rounding = (
        3 * torch.finfo(torch.bfloat16).eps
        if "precision" in options
        else sum_error(np.float32, 8 * 36)
    )
    assert_close(*results, 8 * 0.05 * 10 * rounding)
    for array in results[1].values():
        assert array.flags.c_contiguous


def test_transform_and_loss_modules_follow_the_mode():
    class Augment(nn.Module):
        def forward(self, x):
            return x + self.training

    training_spec = TrainingSpec(
        net=mlp(), optimizer=torch.optim.SGD, loss=nn.MSELoss(), transform=Augment()
    )
    parameters = {k: v.numpy() for k, v in mlp().state_dict().items()}
    x = torch.zeros(2, 6)
    assert ModelReplica(training_spec, parameters, "cpu", training=True).transformed(x).sum() == 12
    assert ModelReplica(training_spec, parameters, "cpu", training=False).transformed(x).sum() == 0
