"""Adding up the results of many workers by a tree of tasks."""

import math
from collections.abc import Mapping

from compss_train.engines import Engine, Ref
from compss_train.worker.merging.merge import gather_items
from compss_train.worker.merging.rules import MergeRule

ARITIES = (4, 8, 16, 32, 64)
"""Maximum number of versions of the parameters that a task of the tree adds up."""

BYTES_PER_SECOND = 1e9
"""Rough rate at which a task adds up parameters, measured with 100 MB of files in memory."""


def best_arity(task_seconds: float, size: float, tasks: int) -> int:
    """Return how many versions of ``size`` bytes a task should add up, for the fastest tree.

    A tree over the results of ``tasks`` tasks has levels, on each of which a task reads that many
    versions.
    """
    version_seconds = size / BYTES_PER_SECOND

    def seconds(arity: int) -> float:
        levels = max(1, math.ceil(math.log(max(2, tasks), arity)))
        return levels * (task_seconds + min(arity, tasks) * version_seconds)

    return min(ARITIES, key=seconds)


def gather_by_tree(
    engine: Engine,
    rule: MergeRule,
    trained: Mapping[int, Ref],
    *,
    arity: int,
    place: int,
    weights: Mapping[int, float] | None = None,
) -> list[Ref]:
    """Submit the tasks that add up the results of many workers, if the rule has partial sums.

    ``trained`` has the items of tasks by the number of their first worker, in ascending order. Each
    task adds up those of an aligned range of workers, so that the bits do not depend on the ranges
    (``weighted_mean``). Returns at most ``arity`` of them. The tasks run at one ``place``.
    ``weights`` are those of workers, if they are not the usual ones.
    """
    workers_a_node = arity
    while rule.partial_sums and len(trained) > arity:
        nodes: dict[int, list[Ref]] = {}
        for worker, ref in trained.items():
            first_worker = worker // workers_a_node * workers_a_node
            nodes.setdefault(first_worker, []).append(ref)
        trained = {
            worker: refs[0]
            if len(refs) == 1
            else engine.submit(gather_items, refs, rule, weights, priority=True, place=place)
            for worker, refs in nodes.items()
        }
        workers_a_node *= arity
    return list(trained.values())
