"""What a classifier's outputs say of the classes depends on the loss that it was trained with."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compss_train.losses import LOSSES, BatchFunction, categorical_cross_entropy

_SMALLEST = 1e-30  # a probability that float32 can hold, for the logarithm of 0


def log_probabilities(outputs: NDArray[Any], loss: str | BatchFunction) -> NDArray[Any]:
    """Return the logarithms of the classes' probabilities, shape (samples, classes).

    Outputs are probabilities where the loss is ``categorical_cross_entropy`` (``cce``, ``sce``) and their
    logarithms where it is ``nn.NLLLoss``, each scaled to a sum of 1; logits else.
    """
    tensor = torch.from_numpy(outputs)
    function = LOSSES.get(loss) if isinstance(loss, str) else loss
    if function is categorical_cross_entropy:
        tensor = tensor.clamp(min=_SMALLEST).log()
    logarithms: Tensor = nn.functional.log_softmax(tensor, dim=1)  # leaves logarithms of probabilities as they are
    result: NDArray[Any] = logarithms.numpy()
    return result
