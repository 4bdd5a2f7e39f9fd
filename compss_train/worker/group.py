"""The task in which several workers train one after another: what they share is loaded once.

Their part of a merge happens in the task: it returns one sum, however many workers it has. Each of them trains as
it would in a task of its own, from the same parameters and with its own state, so that its results have the same
bits.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

from compss_train.model import parameters as params
from compss_train.model.compression import Contribution
from compss_train.model.measured import Measured
from compss_train.model.parameters import Parameters
from compss_train.model.training_spec import TrainingSpec
from compss_train.model.weighted_mean import PartialSum, partial_sum
from compss_train.worker.learner import WorkerState
from compss_train.worker.train import train
from compss_train.worker.work import Work

GroupState: TypeAlias = tuple[WorkerState, ...]
"""The states of the workers of a group."""


def train_group(
    training_spec: TrainingSpec,
    parameters: Parameters,
    state: GroupState,
    values: Sequence[Any],
    works: Sequence[Work],
    moments: Parameters | None = None,
) -> tuple[PartialSum, GroupState]:
    """Train workers one after another, each from ``parameters``; the other arguments are as in ``train``.

    ``values`` are the blocks of all workers. Returns the sum of what they trained, with their measurements, and the
    new states of the group. Measured is also the ``change`` of each worker, the squared norm of the change of its
    weights: the merge compares them.
    """
    sums: list[PartialSum] = []
    after = [*state]
    for work in works:
        trained, after[work.position], own = train(
            training_spec, parameters, after[work.position], work, values, moments
        )
        own.change = params.squared_distance(parameters, trained, training_spec.names.distinct_weights)
        count = own.given if work.reading.may_skip else work.samples
        sums = _with_complete_nodes([*sums, PartialSum.of_worker(trained, count, work.worker, own)], work.worker)
    return partial_sum(sums), tuple(after)


def train_alone(
    training_spec: TrainingSpec,
    parameters: Parameters,
    state: GroupState,
    values: Sequence[Any],
    works: Sequence[Work],
    moments: Parameters | None = None,
) -> tuple[Contribution, GroupState, list[Measured]]:
    """Train the only worker that has samples; return what it trained, the states of the group, its measurements."""
    (work,) = works
    after = [*state]
    trained, after[work.position], own = train(
        training_spec, parameters, after[work.position], work, values, moments
    )
    return trained, tuple(after), [own]


def _with_complete_nodes(sums: list[PartialSum], worker: int) -> list[PartialSum]:
    """Add up what is complete with this worker, so that few versions of the parameters are in memory."""
    size = 2
    while (worker + 1) % size == 0 and len(sums) > 1:
        start = worker + 1 - size
        inside = [each for each in sums if each.first >= start]
        sums = [*(each for each in sums if each.first < start), partial_sum(inside)]
        size *= 2
    return sums
