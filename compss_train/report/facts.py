"""The facts at the top of a report: how a run went, in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from compss_train.columns import numbers
from compss_train.curves import RATE
from compss_train.report.markup import Markup, tag
from compss_train.report.texts import duration, number, percent, speed
from compss_train.timeline import KINDS, Interval, Record

MEASURED = 6
"""The most losses and metrics among them."""


def facts(history: Sequence[Record], found: Sequence[Interval]) -> Iterator[Markup]:
    """Iterate over the facts of a history that is not empty."""
    samples, seconds = (sum(record[name] for record in history) for name in ("samples", "seconds"))
    best = max(record["samples_per_second"] for record in history)
    epochs = history[-1]["epoch"]
    yield _fact("rounds", f"{len(history):,}", f"{epochs:,} epoch{'s' * (epochs > 1)}" if epochs else None)
    yield _fact("time", duration(seconds), f"{samples:,} samples")
    yield _fact("samples/s", speed(samples / seconds) if seconds else "", f"best round {speed(best)}")
    names = dict.fromkeys(name for record in history for name in numbers(record))
    for name in [name for name in names if name != RATE and "[" not in name][:MEASURED]:
        yield _measured(name, history)
    if found:
        yield _spent(found)


def _measured(name: str, history: Sequence[Record]) -> Markup:
    """Return the last value, and the lowest one, or the highest of what has grown."""
    values = [(each[name], record["round"]) for record in history if name in (each := numbers(record))]
    known = [(value, at) for value, at in values if not math.isnan(value)] or values
    grows = known[-1][0] > known[0][0] and not name.endswith("loss")
    best, at = max(known) if grows else min(known)
    detail = f"{'highest' if grows else 'lowest'} {number(best)}, round {at}"
    return _fact(name.replace("_", " "), number(values[-1][0]), detail if len(values) > 1 else None)


def _spent(found: Sequence[Interval]) -> Markup:
    shares = spent_shares(found)
    bar = tag(
        "div", *(tag("i", class_=kind, style=f"width:{100 * shares[kind]:.2f}%") for kind in KINDS), class_="bar"
    )
    text = ", ".join(f"{percent(shares[kind])} {kind}" for kind in KINDS[1:])
    return _fact("time in training", percent(shares["training"]), text, bar)


def spent_shares(found: Sequence[Interval]) -> Mapping[str, float]:
    """Return the share of each kind in all that the workers did."""
    seconds = {kind: sum(interval.seconds for interval in found if interval.kind == kind) for kind in KINDS}
    whole = sum(seconds.values()) or 1.0
    return {kind: each / whole for kind, each in seconds.items()}


def _fact(name: str, value: str, detail: str | None = None, *more: Any) -> Markup:
    small = None if detail is None else tag("small", detail)
    return tag("div", tag("span", name), tag("b", value), *more, small, class_="fact")
