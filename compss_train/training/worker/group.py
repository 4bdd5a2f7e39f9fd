"""The task in which several workers train one after another: what they share is loaded once.

Their part of a merge happens in the task: it returns one sum, however many workers it has. Each of them trains as
it would in a task of its own, from the same parameters and with its own state, so that its results have the same
bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from compss_train.data.block import Block
from compss_train.data.reading import FilePart
from compss_train.model.compression import Contribution
from compss_train.model.parameters import Parameters
from compss_train.model.training_spec import TrainingSpec
from compss_train.model.weighted_mean import PartialSum, partial_sum
from compss_train.training.worker.source import Shard
from compss_train.training.worker.train import WorkerState, train

GroupState: TypeAlias = tuple[WorkerState, ...]
"""The states of the workers of a group."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Member:
    """A worker of a group that trains in a round: everything but the values that the task receives."""

    worker: int
    position: int
    """In the group."""
    shard: Shard
    device: str
    x: tuple[int, ...] | FilePart
    """Which of the task's values are its blocks of x, or its part of a ``FileDataset``."""
    others: tuple[int, ...] = ()
    """Which of them are its blocks of y and of weights."""
    count: int | None = None
    """Its samples in the merge; ``None`` for those that it will have trained, where files may be skipped."""


def train_group(
    training_spec: TrainingSpec,
    parameters: Parameters,
    states: GroupState,
    values: Sequence[Block],
    members: Sequence[Member],
    moments: Parameters | None = None,
    alone: bool = False,
) -> tuple[PartialSum | Contribution, GroupState, list[dict[str, Any]]]:
    """Train workers one after another, each from ``parameters``; the other arguments are as in ``train``.

    ``values`` are the blocks of all of them. Returns the sum of what they trained, or what a worker that is
    ``alone`` did, the new states of the group, and the measurements of each member.
    """
    sums: list[PartialSum] = []
    after, measured = list(states), []
    for member in members:
        position = member.position
        xs = member.x if isinstance(member.x, FilePart) else [values[index] for index in member.x]
        others = [values[index] for index in member.others]
        trained, after[position], own = train(
            training_spec, parameters, states[position], xs, others, member.shard, member.device, moments
        )
        measured.append(own)
        if alone:
            return trained, tuple(after), measured
        count = own["given"] if member.count is None else member.count
        sums = _with_complete_nodes([*sums, PartialSum.of_worker(trained, count, member.worker)], member.worker)
    return partial_sum(sums), tuple(after), measured


def _with_complete_nodes(sums: list[PartialSum], worker: int) -> list[PartialSum]:
    """Add up what is complete with this worker, so that few versions of the parameters are in memory."""
    size = 2
    while (worker + 1) % size == 0 and len(sums) > 1:
        start = worker + 1 - size
        inside = [each for each in sums if each.first >= start]
        sums = [*(each for each in sums if each.first < start), partial_sum(inside)]
        size *= 2
    return sums
