"""Small networks as functions of their weights, which samplers of inputs train in between.

Weights and random numbers are given, so that nothing depends on torch's global generator, and
nothing changes it. Nor does anything depend on the program's default dtype, device and grad mode.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

DTYPE = torch.float32
"""The dtype of weights and random numbers."""


@contextmanager
def on_cpu_with_gradients() -> Iterator[None]:
    """Compute on the CPU and with gradients in the block, whatever the program has set."""
    with torch.device("cpu"), torch.inference_mode(mode=False):
        yield


def new_weights(sizes: Sequence[int], generator: torch.Generator) -> list[Tensor]:
    """Return the weights and biases of an MLP with layers of these sizes, in turn."""
    weights: list[Tensor] = []
    for inputs, outputs in pairwise(sizes):
        bound = inputs**-0.5  # that of torch.nn.Linear
        for shape in ((outputs, inputs), (outputs,)):
            uniform = torch.rand(shape, generator=generator, dtype=DTYPE)
            weights.append((2 * uniform - 1) * bound)
    return weights


def mlp(weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """Return the outputs of an MLP, with SiLU between its layers."""
    *hidden, last = zip(weights[::2], weights[1::2], strict=True)
    for weight, bias in hidden:
        x = functional.silu(functional.linear(x, weight, bias))
    return functional.linear(x, *last)


def minimized(
    weights: list[Tensor], batch_loss: Callable[[], Tensor], *, steps: int, rate: float
) -> list[Tensor]:
    """Return weights after some steps of a new Adam on the loss of batches.

    ``batch_loss`` uses these very tensors, which are changed.
    """
    trained = [weight.requires_grad_() for weight in weights]
    optimizer = torch.optim.Adam(trained, lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        batch_loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return [weight.detach() for weight in trained]
