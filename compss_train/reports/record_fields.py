"""The fields of a record of the history: which of them are losses and metrics, and which are bookkeeping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BOOKKEEPING = (
    *("round", "epoch", "samples", "batches", "seconds", "samples_per_second", "workers", "worker"),
    *("files", "skipped", "skipped_batches", "lr", "fit_started", "started", "ended", "merge"),
    *("batches_per_second", "received", "buffer", "unseen", "repetitions_mean", "repetitions", "simulations"),
)
"""Names in a record of the history that are no losses or metrics."""

COUNTED = ("round", "epoch", "samples", "seconds", "samples_per_second")
"""Those of them that are a number in every record."""
COUNTED_ONLINE = (*COUNTED, "batches_per_second", "received", "buffer", "unseen", "repetitions_mean")
"""The same of online fits."""


def measured_names(record: Mapping[str, Any]) -> list[str]:
    """Return the names of a record's losses and metrics, those of validation last."""
    return [name for name in record if name not in BOOKKEEPING]
