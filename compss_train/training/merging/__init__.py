"""Merging: how the parameters of the workers become global parameters. Independent of the engine.

Synchronous merging averages the workers' parameters, weighted by the samples of each in the round, as in local SGD
(Stich 2019) and federated averaging (McMahan et al. 2017). Commutative merging adds each worker's weighted change
to the global parameters on arrival, so that no worker waits for another. Merging through a parameter server does
so layer by layer, without the engine.
"""

from collections.abc import Collection

from compss_train.engines import Engine
from compss_train.model.parameters import Parameters
from compss_train.training.fit_options import FitOptions
from compss_train.training.merging.base import Merge, SubmittedRound
from compss_train.training.merging.commutative import CommutativeMerge
from compss_train.training.merging.server import ServerMerge
from compss_train.training.merging.synchronous import SynchronousMerge

__all__ = ["Merge", "SubmittedRound", "make_merge"]


def make_merge(
    options: FitOptions, *, engine: Engine, initial: Parameters, num_workers: int, buffers: Collection[str]
) -> Merge:
    """Return the merge that the options name; ``buffers`` are the names of the network's buffers."""
    if options.merge == "synchronous":
        return SynchronousMerge(engine, initial)
    if options.merge == "parameter_server":
        return ServerMerge(engine, initial, num_workers, buffers)
    return CommutativeMerge(engine, initial, num_workers, rule=options.rule, buffers=buffers)
