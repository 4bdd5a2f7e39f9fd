"""What is done between a batch's loss and the optimizer's step, checked before any task starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from compss_train.validation import check_choice, check_count, check_positive

OnNan = Literal["raise", "skip", "ignore"]


@dataclass(frozen=True, slots=True)
class Stepping:
    """How gradients become steps; ``DistributedTrainer.build`` explains each option."""

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
                f"clip_norm={self.clip_norm} and clip_value={self.clip_value}: give one of them at most, the "
                "largest norm of all gradients together or the largest size of each element"
            )
        check_count("accumulate", self.accumulate)
        check_choice("on_nan", self.on_nan, get_args(OnNan))
