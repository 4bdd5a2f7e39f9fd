"""``Gradients``: what happens to gradients before an optimizer steps with them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import nn

from compss_train._utils.validation import check_choice, check_count, check_positive

_LEAST_NORM_OF_WEIGHTS = 1e-3
"""In adaptive clipping, the least norm of a unit's weights: 0 would not let them be trained."""

_LEAST_NORM_OF_GRADIENT = 1e-6
"""In adaptive clipping, the least norm of a unit's gradient, by which limits are divided."""

OnNan = Literal["raise", "skip", "ignore"]


@dataclass(frozen=True, slots=True)
class Gradients:
    """What happens to gradients before the optimizer steps with them; ``build(gradients=...)``.

    Parameters
    ----------
    clip_norm, clip_value, clip_adaptive:
        The maximum norm of all gradients together; the maximum absolute value of each element; or
        the maximum norm of each unit's gradient as a part of the norm of its weights, after Brock
        et al., High-Performance Large-Scale Image Recognition Without Normalization
        (arXiv:2102.06171), who take 0.01. A unit is a row of a matrix, a filter of a convolution,
        or all of a vector. At most one of them; ``None`` (default) does not clip.
    accumulate:
        Batches per optimizer step, 1 by default; their gradients are averaged over the samples. The
        last step of an epoch, and the last one before workers merge, may have fewer.
    on_nan:
        If a loss or parameter is NaN or infinite: ``"raise"`` (default) ends the fit; ``"skip"``
        makes no step for a batch whose loss or gradients are not finite, and counts it;
        ``"ignore"`` continues.

    Raises ``ValueError`` and ``TypeError`` for other values.
    """

    clip_norm: float | None = None
    clip_value: float | None = None
    clip_adaptive: float | None = None
    accumulate: int = 1
    on_nan: OnNan = "raise"

    def __post_init__(self) -> None:
        limits = {
            "clip_norm": self.clip_norm,
            "clip_value": self.clip_value,
            "clip_adaptive": self.clip_adaptive,
        }
        limits = {name: limit for name, limit in limits.items() if limit is not None}
        for name, limit in limits.items():
            check_positive(name, limit)
        if len(limits) > 1:
            options = " and ".join(f"{name}={limit}" for name, limit in limits.items())
            raise ValueError(
                f"{options}: give at most one of them, the largest norm of all gradients together, "
                "the largest absolute value of each element or the largest norm of each unit's "
                "gradient to that of its weights"
            )
        check_count("accumulate", self.accumulate)
        check_choice("on_nan", self.on_nan, get_args(OnNan))

    def clip(self, parameters: Sequence[nn.Parameter]) -> None:
        """Clip the gradients of these parameters."""
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, self.clip_norm)
        if self.clip_value is not None:
            nn.utils.clip_grad_value_(parameters, self.clip_value)
        if self.clip_adaptive is not None:
            for parameter in parameters:
                if parameter.grad is not None:
                    _clip_units(parameter.detach(), parameter.grad, self.clip_adaptive)


def _clip_units(weights: torch.Tensor, gradient: torch.Tensor, ratio: float) -> None:
    """Limit the norm of each unit's gradient to a ratio of the norm of its weights, in place."""
    limits = ratio * _unit_norms(weights).clamp(min=_LEAST_NORM_OF_WEIGHTS)
    norms = _unit_norms(gradient.detach()).clamp(min=_LEAST_NORM_OF_GRADIENT)
    gradient.mul_((limits / norms).clamp(max=1))


def _unit_norms(tensor: torch.Tensor) -> torch.Tensor:
    """Return the norm of each unit, with as many dimensions as the tensor."""
    dimensions = tuple(range(1, tensor.dim())) or None
    norms: torch.Tensor = torch.linalg.vector_norm(tensor, dim=dimensions, keepdim=True)
    return norms
