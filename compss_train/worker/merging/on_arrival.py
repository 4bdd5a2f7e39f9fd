"""Merges of one worker by itself, as it arrives: updates of the global parameters."""

from collections.abc import Collection, Iterable
from typing import cast

from compss_train.model.commutative_updates import MergedParameters, apply_delta, halve
from compss_train.model.parameters import Parameters, has_same_bits
from compss_train.worker.merging.buffers import combined_buffer
from compss_train.worker.merging.trained import MAXIMA, Trained


def only_worker(workers: Iterable[Trained]) -> list[Trained]:
    """Return what the only worker of a task trained."""
    (trained,) = workers
    return [trained]


def only_parameters(workers: Iterable[Trained]) -> list[Parameters]:
    """Return the parameters of the only worker of a task."""
    (trained,) = workers
    return [cast("Parameters", trained.parameters)]  # a server takes no compressed changes


def add_change(
    current: Parameters,
    base: Parameters,
    trained: Trained,
    total: int,
    buffers: Collection[str],
) -> MergedParameters:
    """Return the global parameters with the change that a worker made to ``base``.

    The change counts by the worker's share of the ``total`` samples of a round.
    """
    kept = [
        name
        for name in trained.unchanged
        if name in current and has_same_bits(current[name], base[name])
    ]
    merged = apply_delta(
        current,
        base,
        trained.parameters,
        count=trained.weight,
        total=total,
        buffers=buffers,
        kept=kept,
    )
    merged.update(_by_rules(current, trained))
    return merged


def halve_with(current: Parameters, trained: Trained) -> Parameters:
    """Return (current + trained) / 2, dislib's rule."""
    halved = halve(current, cast("Parameters", trained.parameters))  # never compressed changes
    return {**halved, **_by_rules(current, trained)}


def _by_rules(current: Parameters, trained: Trained) -> Parameters:
    """Return the buffers that merge by rules of their own, after a worker's merge."""
    merged = dict(trained.firsts or {})
    for name, array in (trained.maxima or {}).items():
        merged[name] = combined_buffer(MAXIMA, [current[name], array])
    return merged
