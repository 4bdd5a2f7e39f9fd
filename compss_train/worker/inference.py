"""The tasks without gradients: evaluate and predict."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train.data.batches import Batching
from compss_train.data.block import Block, as_tensor
from compss_train.parameters import Parameters
from compss_train.worker.random_state import random_state
from compss_train.worker.recipe import Recipe, Replica
from compss_train.worker.samples import own_rows
from compss_train.worker.tally import Tally, explained


def evaluate(
    recipe: Recipe,
    parameters: Parameters,
    xs: Sequence[Block],
    ys: Sequence[Block] | None,
    batch_size: int,
    device: str,
) -> dict[str, float]:
    """Return the sums of loss and metric over the samples of the blocks, with the network in evaluation mode."""
    with random_state(0, device), torch.no_grad():
        replica = recipe.replica(parameters, device, training=False)
        tally = Tally(replica.recipe.metric)
        for number, block in enumerate(xs):
            x = as_tensor(block)
            y = None if ys is None else as_tensor(ys[number])
            for start, stop in Batching(size=batch_size).bounds(len(x)):
                targets = None if y is None else own_rows(y, start, stop)
                _measure(replica, own_rows(x, start, stop), targets, tally)
        return tally.sums()


def _measure(replica: Replica, x: torch.Tensor, y: torch.Tensor | None, tally: Tally) -> None:
    x, y = x.to(replica.device), None if y is None else y.to(replica.device)
    with explained(x, replica), replica.autocast():
        output, target = replica.forward(x, y)
        tally.add(len(x), replica.recipe.loss(output, target), output, target)


def predict(
    recipe: Recipe, parameters: Parameters, xs: Sequence[Block], batch_size: int, device: str
) -> list[NDArray[np.generic]]:
    """Return the outputs for each block, with the network in evaluation mode; bfloat16 comes as float32."""
    with random_state(0, device), torch.no_grad():
        replica = recipe.replica(parameters, device, training=False)
        return [_outputs(replica, as_tensor(block), batch_size) for block in xs]


def _outputs(replica: Replica, x: torch.Tensor, batch_size: int) -> NDArray[np.generic]:
    outputs = []
    for start, stop in Batching(size=batch_size).bounds(len(x)):
        batch = own_rows(x, start, stop).to(replica.device)
        with explained(batch, replica), replica.autocast():
            output, _ = replica.forward(batch, None)
        if not isinstance(output, torch.Tensor):
            raise TypeError(
                f"predict needs a network that returns one tensor, this one returns a {type(output).__name__}; "
                "wrap it in a module that returns what you want, or use model()"
            )
        outputs.append(output.float() if output.dtype == torch.bfloat16 else output)
    array: NDArray[np.generic] = torch.cat(outputs).cpu().numpy()
    return array
