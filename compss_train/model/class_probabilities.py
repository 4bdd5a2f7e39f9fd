"""``probabilities_for``: what turns outputs into the probabilities of classes, as a loss says."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from compss_train.model.error_hints import kind_of
from compss_train.model.losses import (
    BatchFunction,
    binary_cross_entropy,
    categorical_cross_entropy,
    cross_entropy,
    full_precision,
)
from compss_train.model.metrics import (
    accuracy_for,
    accuracy_of_logits,
    accuracy_of_probabilities,
)

ProbabilityKind = Literal["classes", "binary"]
"""Whether probabilities are of all classes, and sum to 1, or of class 1."""


def of_logits(output: Tensor) -> Tensor:
    """Return the softmax of logits (N, C, ...)."""
    return full_precision(output).softmax(dim=1)


def of_logarithms(output: Tensor) -> Tensor:
    """Return probabilities of which these are the logarithms."""
    return full_precision(output).exp()


def of_binary_logits(output: Tensor) -> Tensor:
    """Return the sigmoid of logits, the probability of class 1."""
    return full_precision(output).sigmoid()


def probabilities_for(loss: BatchFunction) -> Callable[[Tensor], Tensor] | None:
    """Return what turns outputs into probabilities; ``None`` if the loss is not known to.

    Those of a cross entropy have the shape of the outputs (N, C, ...), and those of a binary cross
    entropy are of class 1.
    """
    function: Any = loss.func if isinstance(loss, partial) else loss
    if isinstance(function, nn.CrossEntropyLoss):
        return of_logits
    if isinstance(function, nn.NLLLoss):
        return of_logarithms
    if isinstance(function, nn.BCEWithLogitsLoss):
        return of_binary_logits
    if isinstance(function, nn.BCELoss):
        return full_precision
    return _OF_FUNCTIONS.get(function)


_OF_FUNCTIONS: dict[Any, Callable[[Tensor], Tensor]] = {
    cross_entropy: of_logits,
    functional.cross_entropy: of_logits,
    functional.nll_loss: of_logarithms,
    functional.binary_cross_entropy_with_logits: of_binary_logits,
    functional.binary_cross_entropy: full_precision,
    binary_cross_entropy: full_precision,
    categorical_cross_entropy: full_precision,
}
"""What turns outputs into probabilities, by functions that are losses."""


def known_probabilities_for(loss: BatchFunction, name: str) -> Callable[[Tensor], Tensor]:
    """Return the same; raise ``ValueError`` that begins with a ``name`` if the loss is unknown."""
    probabilities = probabilities_for(loss)
    if probabilities is None:
        loss_name = getattr(loss, "__name__", type(loss).__name__)
        raise ValueError(
            f"{name}: the loss {loss_name} does not say what the probabilities of classes are, as "
            "a cross entropy does; compute them of the outputs"
        )
    return probabilities


def of_arrays(probabilities: Callable[[Tensor], Tensor], outputs: Any) -> Any:
    """Return the probabilities of outputs, or of their ``logits``: arrays, or a list of arrays.

    Raises ``TypeError`` for other outputs.
    """
    if isinstance(outputs, dict) and "logits" in outputs:
        outputs = outputs["logits"]
    if isinstance(outputs, list) and outputs and isinstance(outputs[0], np.ndarray):
        return [of_arrays(probabilities, output[None])[0] for output in outputs]
    if not isinstance(outputs, np.ndarray):
        raise TypeError(
            f"probabilities of the classes need one array of outputs, or one called 'logits'; the "
            f"network returns {kind_of(outputs)}"
        )
    return probabilities(torch.from_numpy(outputs)).numpy()


def kind_of_probabilities(loss: BatchFunction) -> ProbabilityKind | None:
    """Return of what the probabilities are that a loss knows; ``None`` if it knows none."""
    if probabilities_for(loss) is None:
        return None
    is_binary = accuracy_for(loss) in (accuracy_of_logits, accuracy_of_probabilities)
    return "binary" if is_binary else "classes"


def as_classes(probabilities: Tensor) -> Tensor:
    """Return the most probable classes (N, ...) of probabilities (N, C, ...), or (N,) or (N, 1)."""
    if probabilities.dim() < 2 or probabilities.shape[1] == 1:
        return (probabilities > 0.5).to(torch.int64)
    return probabilities.argmax(dim=1)
