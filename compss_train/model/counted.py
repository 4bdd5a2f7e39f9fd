"""``Counted``: a user's loss that is a mean over something else than samples."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compss_train.model.losses import BatchFunction
from compss_train.model.output_loss import OUTPUT_LOSS


@dataclass(frozen=True, slots=True)
class Counted:
    """A loss that is a mean over targets that count, not over samples; ``build(loss=...)``.

    Means over batches and workers are weighted by the count, in records, accumulated gradients and
    merges. Losses of torch and of this package with an ``ignore_index`` are counted without it.

    Parameters
    ----------
    function:
        The loss: a function of a batch's outputs and targets that returns a mean; or
        ``"output.loss"``, the network's own.
    count:
        A function of the targets that returns what the mean is over, such as ``lambda y: (y !=
        -100).sum()``: one finite number of at least 0. A batch of count 0 has no share, and its
        loss may be NaN.

    Raises ``TypeError`` for what is not a function.
    """

    function: BatchFunction | str
    count: Callable[[Any], Any]

    def __post_init__(self) -> None:
        for name in ("function", "count"):
            value = getattr(self, name)
            if not callable(value) and (name, value) != ("function", OUTPUT_LOSS):
                raise TypeError(
                    f"Counted({name}={value!r}): give a function; losses by name are counted "
                    "without Counted"
                )
