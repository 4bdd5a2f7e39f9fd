"""Monitoring of a field of the records: its value in a record, and whether a new value is better."""

import math
from collections.abc import Mapping
from difflib import get_close_matches
from numbers import Real
from typing import Any, Literal

from compss_train._utils.validation import check_choice, suggestion
from compss_train.reports.records import measured_names

Mode = Literal["min", "max"]

_LOWER = ("loss", "mse", "mae", "mre", "rmse", "error", "perplexity")
_HIGHER = ("accuracy", "acc", "auc", "auroc", "f1", "precision", "recall", "r2", "score")


def mode_of(monitor: str, mode: Mode | None) -> Mode:
    """Return ``mode``, or infer from the name of the field whether the lowest or the highest value is the best.

    Raises ``ValueError`` if the name is unknown.
    """
    if not isinstance(monitor, str):
        raise TypeError(f"{monitor!r} is no name of a field in records; give for example 'val_loss'")
    if mode is not None:
        check_choice("mode", mode, ("min", "max"))
        return mode
    words = monitor.lower().split("_")
    for known, best in ((_LOWER, "min"), (_HIGHER, "max")):
        if any(word in known for word in words):
            return "min" if best == "min" else "max"
    similar = [next(iter(get_close_matches(word, (*_LOWER, *_HIGHER), 1, 0.75)), word) for word in words]
    hint = "" if similar == words else f", or did you mean {'_'.join(similar)!r}?"
    raise ValueError(
        f"{monitor!r}: unknown whether low or high values are better; give mode='min' or mode='max'{hint}"
    )


def is_better(value: float, best: float | None, mode: Mode, min_delta: float = 0.0) -> bool:
    """Return whether a value improves the best one by more than ``min_delta``; NaN never does."""
    if math.isnan(value):
        return False
    if best is None:
        return True
    return best - value > min_delta if mode == "min" else value - best > min_delta


def value_of(record: Mapping[str, Any], monitor: str) -> float:
    """Return the monitored number of a record; raise ``ValueError`` if the record has no number of that name."""
    if monitor not in record:
        names = measured_names(record)
        validated = any(name.startswith("val_") for name in names)
        hint = "; give fit validation_data=" if monitor.startswith("val_") and not validated else ""
        raise ValueError(f"records have no {monitor!r} but {', '.join(names)}{hint or suggestion(monitor, names)}")
    value = record[monitor]
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{monitor!r} is {value!r}; monitoring needs a single number")
    return float(value)
