"""``LossCheck``: whether a fit learns, whose merges may be why it does not."""

from dataclasses import dataclass, field
from statistics import fmean

from compss_train._utils.validation import warn_user
from compss_train.reports.records import Record
from compss_train.training.merge import Merge

FIRST_PART = 4
"""The loss is checked after this part of a fit: a quarter."""
FEWEST_ROUNDS = 3
"""Rounds that a quarter of a fit must have to be checked."""


@dataclass(kw_only=True)
class LossCheck:
    """Compares the losses of the first quarter of a fit with that of its first round.

    Only merges that go beyond the mean of all workers are checked: an outer optimizer, changes that
    are added as they arrive. Two rounds say nothing, so a quarter needs more.
    """

    merge: Merge
    samples: int
    """Number of samples that the fit will train on."""
    _losses: list[float] = field(default_factory=list, init=False)
    _trained: int = field(default=0, init=False)

    @classmethod
    def of(cls, merge: Merge, samples: int | None) -> "LossCheck | None":
        """Return the check of a fit; ``None`` if its merges need none, or its end is not known."""
        adds_changes = merge.kind == "parameter_server" or merge.quorum == 0
        if not samples or not (adds_changes or merge.outer_optimizer is not None):
            return None
        return cls(merge=merge, samples=samples)

    def observe(self, record: Record) -> None:
        """Take the record of the next round; after a quarter of the fit, warn if needed."""
        is_due = self._trained * FIRST_PART < self.samples
        self._losses.append(record["loss"])
        self._trained += record["samples"]
        if not is_due or self._trained * FIRST_PART < self.samples:
            return
        first, *losses = self._losses
        recent = losses[len(losses) // 2 :]
        if len(self._losses) < FEWEST_ROUNDS or not fmean(recent) >= first:
            return
        warn_user(
            f"the loss was {first:.4g} in the first round, and is {fmean(recent):.4g} after a "
            f"quarter of the fit: its merges may be too much for so few batches ({self.merge}); "
            "try merge='synchronous' and a batch_size of 16 to 100, or fewer workers"
        )
