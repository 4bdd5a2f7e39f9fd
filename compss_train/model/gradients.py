"""``Gradients``: how gradients become steps of the optimizer."""

from dataclasses import dataclass
from typing import Literal, get_args

from compss_train._utils.validation import check_choice, check_count, check_positive

OnNan = Literal["raise", "skip", "ignore"]


@dataclass(frozen=True, slots=True)
class Gradients:
    """What happens to gradients before the optimizer steps with them; ``build(gradients=...)``.

    Parameters
    ----------
    clip_norm, clip_value:
        The maximum norm of all gradients together, or the maximum absolute value of each element; at most one of
        them. ``None`` (default) does not clip.
    accumulate:
        Batches per optimizer step, 1 by default; their gradients are averaged over the samples. The last step of an
        epoch, and the last one before workers merge, may have fewer.
    on_nan:
        If a loss or parameter is NaN or infinite: ``"raise"`` (default) ends the fit; ``"skip"`` makes no step for
        a batch whose loss or gradients are not finite, and counts it; ``"ignore"`` continues.

    Raises ``ValueError`` and ``TypeError`` for other values.
    """

    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1
    on_nan: OnNan = "raise"

    def __post_init__(self) -> None:
        for name in ("clip_norm", "clip_value"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if self.clip_norm is not None and self.clip_value is not None:
            raise ValueError(
                f"clip_norm={self.clip_norm} and clip_value={self.clip_value}: give at most one of them, the "
                "largest norm of all gradients together or the largest absolute value of each element"
            )
        check_count("accumulate", self.accumulate)
        check_choice("on_nan", self.on_nan, get_args(OnNan))
