"""The benchmarks' network as dislib.pytorch wants it.

Dislib's workers import this module with the network, and so use a thread a task, as ours do.
"""

from __future__ import annotations

import torch
from _common import network
from torch import nn

torch.set_num_threads(1)


class Layers(nn.Module):
    """A network of ``_common`` whose layers are where dislib looks for them."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__()
        self.neural_network_layers = network(name, seed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply all layers."""
        return self.neural_network_layers(x)
