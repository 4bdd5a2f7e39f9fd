"""Delayed Nesterov: the outer optimizer of commutative merging, where workers arrive one at a time.

Source: Liu et al. 2024, "Asynchronous local-SGD training for language modeling" (arXiv 2401.09135), algorithm 3
with c = 0. The negative of an arriving worker's weighted change is the gradient g. Each arrival moves the global
parameters by -lr · g. The momentum gathers as many gradients as there are workers; then m = momentum · m + Σ g, and
the parameters also move by -lr · momentum · m. If momentum advanced with every arrival, it would decay as often as
there are workers in each round, and each change would be repeated by all workers that arrive later.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from compss_train._utils.validation import check_at_least_0
from compss_train.model import parameters as params
from compss_train.model.compression import Contribution

_KIND = "delayed Nesterov"
_ACCEPTED = {"optimizer", "lr", "momentum", "nesterov"}


@dataclass(frozen=True)
class DelayedNesterov:
    """The learning rate and the momentum of the outer optimizer."""

    lr: float
    momentum: float = 0.0

    @classmethod
    def of(cls, spec: object) -> Self:
        """Return the optimizer that a dict of ``outer_optimizer=`` describes.

        Raises ``ValueError`` for other optimizers, for momentum without ``nesterov``, and for values that are not
        numbers of at least 0.
        """
        given = dict(spec) if isinstance(spec, Mapping) else {}
        other_momentum = bool(given.get("momentum")) and given.get("nesterov") is not True
        if given.get("optimizer") != "sgd" or set(given) - _ACCEPTED or other_momentum:
            raise ValueError(
                'merge="commutative" steps with plain SGD or Nesterov momentum: give {"optimizer": "sgd", '
                '"lr": 0.7, "momentum": 0.9, "nesterov": True}, or take merge="synchronous" for other optimizers'
            )
        return cls(check_at_least_0("lr", given["lr"]), check_at_least_0("momentum", given.get("momentum", 0.0)))

    def starting(self, initial: params.Parameters, saved: Mapping[str, Any] | None) -> params.Parameters:
        """Return initial parameters that continue from a saved state; the state of another optimizer is ignored."""
        if not self.momentum or saved is None or saved["kind"] != _KIND:
            return initial
        merged = params.MergedParameters(initial)
        merged.outer = dict(saved)
        return merged


def step_on_arrival(
    current: params.Parameters,
    optimizer: DelayedNesterov,
    base: params.Parameters,
    trained: Contribution,
    count: params.Count,
    total: int,
    workers: int,
    buffers: Collection[str] = (),
) -> params.Parameters:
    """Return the global parameters after a step with the change of a worker, as ``apply_delta`` without optimizer.

    ``workers`` is the number of arrivals after which momentum is applied; a worker without samples does not count,
    and changes nothing. Names in ``buffers`` and integers are merged as by ``apply_delta``.

    Raises ``DivergedError`` if a step leads to NaN or infinity.
    """
    count = params.sample_count(count)
    if not count:
        return current
    with np.errstate(over="ignore", invalid="ignore"):  # the error below says more than a warning
        merged = params.apply_delta(current, base, trained, count, total, buffers, optimizer.lr)
        if optimizer.momentum:
            outer = getattr(current, "outer", None) or {"momentum": {}, "arrivals": 0}
            is_applied = outer["arrivals"] + 1 >= workers
            momentum = {}  # momentum · m, and the gradients since m was applied
            for name, array in base.items():
                if array.dtype.kind not in "fc" or name in buffers:
                    continue
                gradient = params.change(array, trained[name])
                gradient *= -(count / total)
                if name in outer["momentum"]:
                    gradient += outer["momentum"][name]
                m = np.asarray(gradient).astype(np.result_type(array.dtype, np.float32), copy=False)
                if is_applied:
                    wide = np.result_type(m.dtype, np.float64)
                    step = np.multiply(m, optimizer.lr * optimizer.momentum, dtype=wide)
                    moved = np.asarray(np.subtract(merged[name], step, dtype=wide))
                    merged[name] = moved.astype(merged[name].dtype, copy=False)
                    m = np.asarray(m * m.dtype.type(optimizer.momentum))  # decays for the next ones
                momentum[name] = m
            arrivals = 0 if is_applied else outer["arrivals"] + 1
            merged.outer = {"kind": _KIND, "momentum": momentum, "arrivals": arrivals}
    params.check_outer_step(merged, current, trained)
    return merged
