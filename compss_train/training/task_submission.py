"""The fleet: the workers as the coordinator sees them, each with its device and its state's reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeAlias

from numpy.typing import NDArray

from compss_train.buffers import BufferSpec
from compss_train.data.order import Batching
from compss_train.data.partitioning import Round, WorkerAssignment, needed_samples, renumbered, rows_by_block
from compss_train.data.reading import FilePart
from compss_train.engines import Engine, Ref, Resources
from compss_train.model.lr_schedules import LrSchedule
from compss_train.samplers import Pools
from compss_train.training.data_handles import DataHandles
from compss_train.training.worker import Shard, WorkerState, split_rows, train

Rows: TypeAlias = "NDArray[Any]"
"""Numbers of samples, or of rows within a block."""


States: TypeAlias = "Sequence[WorkerState | Ref]"
"""A state for each worker."""


@dataclass(frozen=True)
class TaskInputs:
    """What a worker trains on in a round: its visits, and references to the blocks or pieces that they name."""

    share: WorkerAssignment
    blocks: tuple[int, ...]
    """Numbers of the blocks."""
    starts: tuple[int, ...]
    """Number of the first sample of each."""
    x: list[Ref] | FilePart
    others: list[Ref]
    """Blocks of y and of weights."""
    pieces: bool = False
    """Whether ``x`` holds pieces, which belong to this round and bring their rows of the others with them."""


@dataclass
class WorkerGroup:
    """Submits the training tasks of a fit."""

    engine: Engine
    training_spec: Ref
    data: DataHandles
    batching: Batching
    shuffle_seed: int | None
    """Seed that rows are shuffled by within a block, ``None`` for no such shuffle."""
    new_optimizer: bool
    """Whether every task begins with a new optimizer."""
    buffer: BufferSpec | None
    """What samples pass through on the way to a model copy."""
    seed: int
    """Of what buffers draw, and of partial shuffles."""
    pools: Pools | None
    """Of a partial shuffle."""
    file_buffer: int
    """The most files that a worker has in memory."""
    resources: Resources
    devices: list[str]
    states: list[WorkerState | Ref]
    """Each worker's state, replaced by the reference to the new one whenever it trains. The one before is kept
    until ``free_states``: a fit that stops goes back to it."""
    schedule: LrSchedule | None = None
    """What is set in the optimizers epoch by epoch."""
    _cut: tuple[Round | None, dict[int, TaskInputs]] = field(default=(None, {}), repr=False)
    """The round whose blocks have been cut into pieces, and what each worker gets of them."""

    def train(
        self, worker: int, round_: Round, parameters: Ref, task: Callable[..., Any] = train, *more: Any
    ) -> tuple[Ref, Ref]:
        """Submit a worker's training in a round; returns references to its parameters and measurements.

        ``task`` is ``train``, or what takes ``more`` arguments to do more with what ``train`` gives.
        """
        supply = self._supply(worker, round_)
        shard = Shard(
            supply.share,
            supply.blocks,
            supply.starts,
            self.batching,
            self.shuffle_seed,
            self.new_optimizer,
            f"round {round_.number} on worker {worker}",
            supply.pieces,
            self.buffer,
            self.seed,
            self.pools,
            self.file_buffer,
            weighted=self.data.weighted,
            hyperparameters=self.schedule.of(block_pass.epoch for block_pass in supply.share)
            if self.schedule
            else {},
        )
        trained, state, measured = self.engine.submit(
            task,
            self.training_spec,
            parameters,
            self.states[worker],
            supply.x,
            supply.others,
            shard,
            self.devices[worker],
            *more,
            returns=3,
            resources=self.resources,
        )
        if supply.pieces and isinstance(supply.x, list):
            self.engine.delete(supply.x)
        self.states[worker] = state
        return trained, measured

    def free_states(self, before: States, after: States) -> None:
        """Free the states that are no longer among those after."""
        kept = {id(state) for state in after}
        self.engine.delete([state for state in before if isinstance(state, Ref) and id(state) not in kept])

    def _supply(self, worker: int, round_: Round) -> TaskInputs:
        share = round_.shares[worker]
        if all(block_pass.samples is None for block_pass in share):
            return self._whole_blocks(share, tuple(dict.fromkeys(block_pass.block for block_pass in share)))
        if self.data.mapped:
            return TaskInputs(share, *self._everything)
        if self._cut[0] is not round_:
            self._cut = round_, self._cut_into_pieces(round_)
        return self._cut[1].pop(worker, None) or TaskInputs(share, *self._everything)

    def _whole_blocks(self, share: WorkerAssignment, numbers: tuple[int, ...]) -> TaskInputs:
        starts = tuple(self.data.starts[number] for number in numbers)
        return TaskInputs(share, numbers, starts, *self.data.select(numbers))

    @cached_property
    def _everything(self) -> tuple[tuple[int, ...], tuple[int, ...], Any, Any]:
        numbers = tuple(range(len(self.data.sizes)))
        return numbers, self.data.starts, *self.data.select(numbers)

    def _cut_into_pieces(self, round_: Round) -> dict[int, TaskInputs]:
        """Submit a task a block that cuts it into a piece for each worker that trains on some of its rows.

        Nothing is cut where workers need more than half of all samples, as they do in a round of several epochs:
        the pieces would be many copies of the data.
        """
        samples = {worker: needed_samples(share) for worker, share in enumerate(round_.shares) if share}
        if 2 * sum(map(len, samples.values())) > len(samples) * sum(self.data.sizes):
            return {}
        rows = {worker: rows_by_block(needed, self.data.starts) for worker, needed in samples.items()}
        pieces: dict[int, list[Ref]] = {worker: [] for worker in samples}
        for block in range(len(self.data.sizes)):
            parts = {worker: cut[block] for worker, cut in rows.items() if len(cut[block])}
            for worker, piece in zip(parts, self._split(block, list(parts.values())), strict=True):
                pieces[worker].append(piece)
        return {
            worker: _of_pieces(round_.shares[worker], samples[worker], rows[worker], pieces[worker])
            for worker in samples
        }

    def _split(self, block: int, parts: list[Rows]) -> list[Ref]:
        if not parts:
            return []
        x, others = self.data.select([block])
        made = self.engine.submit(split_rows, [*x, *others], parts, returns=len(parts))
        return list(made) if len(parts) > 1 else [made]


def values_of(engine: Engine, states: States) -> list[WorkerState]:
    """Return the states themselves, waiting for those that are still to come."""
    fetched = iter(engine.fetch([state for state in states if isinstance(state, Ref)]))
    return [next(fetched) if isinstance(state, Ref) else state for state in states]


def _of_pieces(share: WorkerAssignment, samples: Rows, rows: list[Rows], pieces: list[Ref]) -> TaskInputs:
    """Return the supply of a worker that gets pieces instead of blocks, with its samples numbered through them."""
    sizes = [len(part) for part in rows if len(part)]
    starts = tuple(accumulate(sizes[:-1], initial=0))
    return TaskInputs(renumbered(share, samples), tuple(range(len(pieces))), starts, pieces, [], pieces=True)
