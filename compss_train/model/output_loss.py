"""``output_loss``: the loss that a network computes itself, as those of Hugging Face do."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from compss_train._utils.nested import leaves
from compss_train.model.error_hints import kind_of
from compss_train.model.losses import IGNORE_INDEX

OUTPUT_LOSS = "output.loss"
"""The name of this loss in ``build(loss=...)``."""

_CAUSAL = ("ForCausalLM", "LMHeadModel")
"""How the names of Hugging Face's classes end whose labels are shifted by one in the loss."""


def part_of(output: Any, name: str) -> Tensor | None:
    """Return a part of outputs that have names, as those of Hugging Face's models, or ``None``."""
    part = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    return part if isinstance(part, Tensor) else None


def output_loss(output: Any, target: Any) -> Tensor:
    """Return the loss in the outputs of a network that gets the targets as ``labels``.

    Raises ``TypeError`` for outputs without one.
    """
    loss = part_of(output, "loss")
    if loss is None:
        raise TypeError(
            f'loss="{OUTPUT_LOSS}": the network returns {kind_of(output)} without a loss; it gets '
            "y as labels=, and must return an object or a dict with 'loss', a tensor"
        )
    return loss


def count_for(net: nn.Module) -> Callable[[Any], Any]:
    """Return a function of targets that says what the network's own loss is a mean over.

    Of class indices, those that are not ignored; the causal language models of Hugging Face predict
    no first token. Of other targets, the samples.
    """
    first = 1 if type(net).__name__.endswith(_CAUSAL) else 0

    def count(target: Any) -> Any:
        labels = target.get("labels", target) if isinstance(target, dict) else target
        if not isinstance(labels, Tensor) or labels.is_floating_point():
            return len(leaves(labels)[0])
        counted = labels[:, first:] if labels.dim() > 1 else labels
        return counted.ne(IGNORE_INDEX).sum()

    return count
