"""Merging: how the parameters of the workers become global parameters. Independent of the engine.

Synchronous merging averages the workers' parameters, weighted by the samples of each in the round, as in local SGD
(Stich 2019) and federated averaging (McMahan et al. 2017). Commutative merging adds each worker's weighted change
to the global parameters on arrival, so that no worker waits for another. Merging through a parameter server does
so layer by layer, without the engine.
"""

from compss_train.engines import Engine
from compss_train.model.delayed_nesterov import DelayedNesterov
from compss_train.model.optimizers import optimizer_factory
from compss_train.model.parameters import Parameters
from compss_train.model.training_spec import TensorNames
from compss_train.training.fit_options import FitOptions
from compss_train.training.merging.base import Merger, SubmittedRound, agreement
from compss_train.training.merging.on_arrival import CommutativeMerger, GlobalParameters, ServerMerger
from compss_train.training.merging.synchronous import SynchronousMerger
from compss_train.training.training_state import MergeState
from compss_train.worker import MergeRule

EMA_DECAY = 0.8
"""The decay of ``Merge(averaging="ema")``: the average reaches back about five merges."""

__all__ = ["Merger", "SubmittedRound", "agreement", "make_merger"]


def make_merger(
    options: FitOptions,
    *,
    engine: Engine,
    initial: Parameters,
    state: MergeState,
    num_workers: int,
    names: TensorNames,
) -> Merger:
    """Return the merger that the options name; it continues from ``state``."""
    merge, started = options.merge, (engine, initial, state)
    outer = merge.outer_optimizer
    if merge.kind == "synchronous":
        rule = MergeRule(
            names=names,
            optimizer=None if outer is None else optimizer_factory(outer),
            moments=merge.optimizer_state == "average",
            compressed=merge.dtype is not None,
            decay=EMA_DECAY if merge.averaging == "ema" else merge.averaging,
        )
        return SynchronousMerger(*started, rule)
    if merge.kind == "parameter_server":
        shared = GlobalParameters(engine, initial, num_workers, names=names, optimizer=outer)
        return ServerMerger(*started, shared)
    optimizer = None if outer is None else DelayedNesterov.of(outer)
    return CommutativeMerger(*started, rule=merge.rule or "weighted", buffers=names.buffers, optimizer=optimizer)
