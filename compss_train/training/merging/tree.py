"""Adding up the results of many workers by a tree of tasks."""

import math
from collections.abc import Mapping

from compss_train.engines import Engine, Ref
from compss_train.model.weighted_mean import partial_sum

ARITIES = (4, 8, 16, 32, 64)
"""Maximum number of versions of the parameters that a task of the tree adds up."""

BYTES_PER_SECOND = 1e9
"""Rough rate at which a task adds up parameters, measured with 100 MB of files in memory."""


def best_arity(task_seconds: float, size: int) -> int:
    """Return how many versions of ``size`` bytes a task should add up, for the fastest tree.

    A tree of arity a has log n / log a levels; on each, a task reads a versions.
    """
    version = size / BYTES_PER_SECOND
    return min(ARITIES, key=lambda arity: (task_seconds + arity * version) / math.log(arity))


def sum_by_tree(engine: Engine, trained: Mapping[int, Ref], arity: int) -> list[Ref]:
    """Submit the tasks that add up the results of many workers.

    ``trained`` has results, or sums of aligned ranges of workers, by the number of their first
    worker, in ascending order. Each task adds up an aligned range too, so that the bits do not
    depend on the ranges (``weighted_mean``). Returns at most ``arity`` results and sums.
    """
    workers_a_node = arity
    while len(trained) > arity:
        nodes: dict[int, list[Ref]] = {}
        for worker, ref in trained.items():
            first_worker = worker // workers_a_node * workers_a_node
            nodes.setdefault(first_worker, []).append(ref)
        trained = {worker: _sum(engine, refs) for worker, refs in nodes.items()}
        workers_a_node *= arity
    return list(trained.values())


def _sum(engine: Engine, refs: list[Ref]) -> Ref:
    """Return a reference to a sum; of one result, the result."""
    if len(refs) == 1:
        return refs[0]
    total: Ref = engine.submit(partial_sum, refs, priority=True)
    return total
