"""Records of the history: the names of their fields, and records flattened to rows of a table."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from operator import itemgetter
from typing import Any, Literal, TypeAlias, TypeGuard

from compss_train._utils.validation import suggestion

Record: TypeAlias = dict[str, Any]
Row: TypeAlias = dict[str, Any]
Axis = Literal["round", "epoch", "samples", "seconds"]
"""What the horizontal axis of curves counts."""

BOOKKEEPING = frozenset(
    (
        *("round", "epoch", "samples", "batches", "seconds", "samples_per_second"),
        *("workers", "worker", "fit_started", "started", "ended", "merge"),
        *("files", "skipped", "skipped_batches", "lr"),
        *("batches_per_second", "received", "buffer", "unseen", "waited"),
        *("repetitions_mean", "repetitions", "simulations", "inputs", "buffer_inputs"),
    )
)
"""Fields of a record that are not losses or metrics."""

_WITH_LISTS = frozenset(("buffer_inputs",))
"""Those of them whose lists are of numbers, each of which is of interest."""

RATES = "lr/"
"""Beginning of the fields with the learning rates of parameter groups other than the first."""

VALIDATION_PREFIX = "val_"
"""Beginning of the names of measures on the validation data."""
AVERAGED_PREFIX = "val_averaged_"
"""Beginning of the names of those with the average of the parameters."""

NUMERIC = ("round", "epoch", "samples", "seconds", "samples_per_second")
"""Bookkeeping fields that are a number in every record of a fit with epochs."""
NUMERIC_ONLINE = (
    *("round", "samples", "seconds", "samples_per_second", "batches_per_second"),
    *("received", "buffer", "unseen", "repetitions_mean", "waited"),
)
"""Bookkeeping fields that are a number in every record of an online fit."""


def is_record(value: object) -> TypeGuard[Record]:
    """Return whether a value of a file has the fields that all records and their workers have."""
    return (
        isinstance(value, dict)
        and {"round", "samples", "seconds", "samples_per_second", "workers"} <= value.keys()
        and isinstance(value["workers"], list)
        and all(map(_is_worker_entry, value["workers"]))
    )


def _is_worker_entry(value: object) -> bool:
    return isinstance(value, dict) and {"worker", "samples", "seconds"} <= value.keys()


def epoch_of(record: Record) -> dict[str, int]:
    """Return the epoch of a record by its name; a record of an online fit has none."""
    return {"epoch": record["epoch"]} if "epoch" in record else {}


def epochs_of(history: Sequence[Record]) -> int:
    """Return the number of epochs that a history ends after."""
    for record in reversed(history):
        if "epoch" in record:
            return int(record["epoch"])
    return 0


def per_second(count: float, seconds: float) -> float:
    """Return ``count / seconds``, and 0 for a record so short that a coarse clock has not moved."""
    return count / seconds if seconds > 0 else 0.0


def measured_names(record: Mapping[str, Any]) -> list[str]:
    """Return the names of a record's losses and metrics, those of validation last."""
    return [name for name in record if name not in BOOKKEEPING and not name.startswith(RATES)]


def monitored_number(record: Mapping[str, Any], name: str) -> float:
    """Return the number of a record that is monitored; raise ``ValueError`` if it has none."""
    if name not in record:
        names = measured_names(record)
        raise ValueError(
            f"records have no {name!r} but {', '.join(names)}{suggestion(name, names)}"
        )
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name!r} is {value!r}; monitoring needs a single number")
    return float(value)


def flatten(record: Record) -> Row:
    """Return a record as a row without its workers.

    Items of metrics have names such as ``recall[0]``, those of dicts ``name.key``. Of the inputs
    that a sampler has drawn it has their numbers, such as ``inputs.child``.
    """
    measured = set(measured_names(record))
    row: Row = {}
    for name, value in record.items():
        if name == "inputs" and isinstance(value, list):
            row.update(Counter(f"inputs.{draw['origin'] or 'drawn'}" for draw in value))
        elif name != "workers":
            row.update(_flat_items(name, value, lists=name in measured or name in _WITH_LISTS))
    return row


def measured_numbers(record: Record) -> dict[str, float]:
    """Return the losses and metrics of a record, or of a worker in a record, that are numbers."""
    measured = {name: record[name] for name in measured_names(record)}
    return {name: float(value) for name, value in flatten(measured).items() if _is_number(value)}


def measured_in(history: Iterable[Record]) -> list[str]:
    """Return the names of the numbers that records have measured, in the order of the first."""
    return list(dict.fromkeys(name for record in history for name in measured_numbers(record)))


def best_value(name: str, history: Sequence[Record]) -> tuple[float, int] | None:
    """Return the best value of a loss or metric and its round, or ``None`` if no round has it.

    It is the lowest one, or, unless it is a loss, the highest if the values have increased; of
    several, the first.
    """
    values = []
    for record in history:
        measured = measured_numbers(record)
        if name in measured:
            values.append((measured[name], int(record["round"])))
    known = [(value, number) for value, number in values if not math.isnan(value)] or values
    if not known:
        return None
    first, _ = known[0]
    last, _ = known[-1]
    has_increased = last > first and not name.endswith("loss")
    return max(known, key=itemgetter(0)) if has_increased else min(known, key=itemgetter(0))


def _flat_items(name: str, value: Any, *, lists: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat_items(f"{name}.{key}", item, lists=lists)
    elif lists and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _flat_items(f"{name}[{index}]", item, lists=lists)
    else:
        yield name, value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
