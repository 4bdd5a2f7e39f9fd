"""The task in which several workers train one after another: what they share is loaded once.

Their part of a merge happens in the task: it returns one sum, however many workers it has. Each of them trains as
it would in a task of its own, from the same parameters and with its own state, so that its results have the same
bits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from compss_train.data.block import Block
from compss_train.data.block_passes import Draws, WorkerAssignment, blocks_of
from compss_train.data.columns import ColumnStructure
from compss_train.data.reading import FilePart
from compss_train.model import parameters as params
from compss_train.model.compression import Contribution
from compss_train.model.lr_schedules import TimedHyperparameters
from compss_train.model.parameters import Parameters
from compss_train.model.training_spec import TrainingSpec
from compss_train.model.weighted_mean import PartialSum, partial_sum
from compss_train.training.fit_options import FitOptions
from compss_train.worker.callbacks import WorkerCallback
from compss_train.worker.source import Shard
from compss_train.worker.train import WorkerState, train

GroupState: TypeAlias = tuple[WorkerState, ...]
"""The states of the workers of a group."""


class Member(NamedTuple):
    """A worker of a group that trains in a round; a tuple, as the coordinator makes thousands of them."""

    worker: int
    position: int
    """In the group."""
    device: str
    assignment: WorkerAssignment
    draws: Draws | None = None
    hyperparameters: Mapping[int, TimedHyperparameters] | None = None
    upcoming: tuple[int, ...] = ()
    """The files that the worker reads ahead for the next round."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundSettings:
    """What the tasks of all groups have in common in a round."""

    number: int
    """Of the round."""
    options: FitOptions
    """As ``FitOptions.for_tasks`` returns them."""
    seed: int
    structure: ColumnStructure
    check_outputs: bool
    may_skip: bool
    """Whether workers may skip files, and then have fewer samples than planned."""
    callbacks: Sequence[WorkerCallback] = ()
    traced: frozenset[int] = frozenset()
    """The workers whose part of the round is traced."""


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupWork:
    """What the workers of a task train on: everything but the values that the task receives.

    The values are the blocks of x, then those of y and of weights in the same order; or blocks, or pieces of them,
    with all columns.
    """

    settings: RoundSettings
    members: Sequence[Member]
    blocks: tuple[int, ...] = ()
    """The numbers of the blocks."""
    starts: tuple[int, ...] = ()
    """Number of the first sample of each block or piece, where passes name their samples; else empty."""
    pieces: bool = False
    """Whether the values are pieces."""
    files: FilePart | None = None
    """The files of all members, in place of values."""

    def inputs_of(self, member: Member, values: Sequence[Any]) -> tuple[Any, Sequence[Block], Shard]:
        """Return the samples of a member as the arguments of ``train``."""
        if self.files is not None:
            return (
                replace(self.files, upcoming=member.upcoming),
                [],
                self._shard(member, blocks_of(member.assignment)),
            )
        if self.starts:
            number = len(self.starts)
            return values[:number], values[number:], self._shard(member, self.blocks)
        numbers = blocks_of(member.assignment)
        places = [self.blocks.index(number) for number in numbers]
        columns = range(0, len(values), len(self.blocks) or 1)
        xs, *others = ([values[start + place] for place in places] for start in columns) if values else ([],)
        return xs, [block for column in others for block in column], self._shard(member, numbers)

    def name_of(self, member: Member) -> str:
        """Return the round and the worker, for messages."""
        return f"round {self.settings.number} on worker {member.worker}"

    def _shard(self, member: Member, blocks: tuple[int, ...]) -> Shard:
        settings = self.settings
        return Shard(
            options=settings.options,
            assignment=member.assignment,
            blocks=blocks,
            starts=self.starts,
            seed=settings.seed,
            name=self.name_of(member),
            worker=member.worker,
            round=settings.number,
            callbacks=settings.callbacks,
            traced=member.worker in settings.traced,
            structure=settings.structure,
            hyperparameters=member.hyperparameters or {},
            draws=member.draws,
            check_outputs=settings.check_outputs,
        )


def train_group(
    training_spec: TrainingSpec,
    parameters: Parameters,
    states: Sequence[GroupState],
    values: Sequence[Any],
    work: GroupWork,
    moments: Parameters | None = None,
) -> tuple[PartialSum, GroupState]:
    """Train workers one after another, each from ``parameters``; the other arguments are as in ``train``.

    ``states`` are those of the groups that were joined to this one, and ``values`` the blocks of all workers.
    Returns the sum of what they trained, with their measurements, and the new states of the group. Measured is also
    the ``change`` of each worker, the squared norm of the change of its weights: the merge compares them.
    """
    sums: list[PartialSum] = []
    after = [*chain.from_iterable(states)]
    for member in work.members:
        xs, others, shard = work.inputs_of(member, values)
        trained, after[member.position], own = train(
            training_spec, parameters, after[member.position], xs, others, shard, member.device, moments
        )
        own["change"] = params.squared_distance(parameters, trained, training_spec.names.distinct_weights)
        count = own["given"] if work.settings.may_skip else shard.samples
        single = PartialSum.of_worker(trained, count, member.worker, own)
        sums = _with_complete_nodes([*sums, single], member.worker)
    return partial_sum(sums), tuple(after)


def train_alone(
    training_spec: TrainingSpec,
    parameters: Parameters,
    states: Sequence[GroupState],
    values: Sequence[Any],
    work: GroupWork,
    moments: Parameters | None = None,
) -> tuple[Contribution, GroupState, list[dict[str, Any]]]:
    """Train the only worker that has samples; return what it trained, the states of the group, its measurements."""
    (member,) = work.members
    after = [*chain.from_iterable(states)]
    xs, others, shard = work.inputs_of(member, values)
    trained, after[member.position], own = train(
        training_spec, parameters, after[member.position], xs, others, shard, member.device, moments
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
