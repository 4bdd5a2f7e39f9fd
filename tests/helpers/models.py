"""Networks and data that the tests share."""

import re

import numpy as np
import torch
from torch import nn

from compss_train import BlockedTensor, Merge

SGD = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}
ADAM = {"optimizer": "adam", "lr": 0.01}

FITS = [
    "fit_synchronous_with_GPU",
    "fit_synchronous_shuffle_with_GPU",
    "fit_synchronous_every_n_epochs_with_GPU",
    "fit_synchronous_shuffle_every_n_epochs_with_GPU",
    "fit_asynchronous_with_GPU",
    "fit_asynchronous_shuffle_with_GPU",
    "fit_asynchronous_n_epochs_with_GPU",
    "fit_asynchronous_shuffle_n_epochs_with_GPU",
]
# When synchronous workers merge.
MODES = [
    {"merge": Merge(every=1)},
    {"merge": Merge(every=2)},
    {"merge": Merge(every=0)},
    {"merge": Merge(every=1, unit="blocks")},
]


def mlp(inputs: int = 6, outputs: int = 3) -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


def awkward_net() -> nn.Module:
    """BatchNorm has floating and integer buffers, Dropout draws random numbers."""
    torch.manual_seed(12)
    return nn.Sequential(
        nn.Linear(6, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(16, 3, bias=False),
    )


class Smoothed(nn.Module):
    """Outputs depend on all batches that the worker has seen, by buffers that are made, replaced
    and changed.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(6, 3)
        self.inner = nn.Module()
        self.register_buffer("mean", torch.zeros(3), persistent=False)
        self.inner.register_buffer("calls", torch.tensor(0), persistent=False)
        self.inner.register_buffer("last", None, persistent=False)
        self.register_buffer("constant", torch.ones(2), persistent=False)
        self.alias = self.inner

    def forward(self, x):
        output = self.linear(x)
        if self.training:
            self.mean.lerp_(output.detach().mean(dim=0), 0.3)
            self.inner.calls += 1
            self.inner.last = output.detach()[:2].clone()
        return output + self.mean + 0.1 * self.inner.calls.sqrt() * torch.tensor([1.0, 0.0, 0.0])


def classification(samples: int = 60, inputs: int = 6):
    random = np.random.default_rng(5)
    y = random.integers(0, 3, samples)
    centres = random.normal(size=(3, inputs)) * 2
    x = centres[y] + random.normal(size=(samples, inputs))
    return x.astype(np.float32), y


def blocked(x, y, blocks: int):
    return BlockedTensor.from_array(x, (blocks, 1)), BlockedTensor.from_array(y, (blocks, 1))


def assert_same_bits(ours, theirs) -> None:
    assert list(ours) == list(theirs)
    for name in ours:
        assert ours[name].dtype == theirs[name].dtype, name
        assert ours[name].tobytes() == theirs[name].tobytes(), name


def assert_close(ours, theirs, tolerance: float) -> None:
    assert list(ours) == list(theirs)
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=tolerance, err_msg=name)


def state_arrays(net: nn.Module):
    return {name: tensor.numpy() for name, tensor in net.state_dict().items()}


def named(value: object) -> str:
    """Return a value as text for a test's name, without addresses, which differ from process to
    process.
    """
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def noisy(x):
    return x + 0.1 * torch.randn_like(x)


def noisy_by_numpy(x):
    return x + torch.from_numpy(np.random.normal(0, 0.1, tuple(x.shape))).to(x)
