"""The fleet: the workers as the coordinator sees them, each with its device and its state's reference."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from compss_train.data.batches import Batching
from compss_train.data.schedule import Round, Share
from compss_train.engines import Engine, Ref, Resources
from compss_train.published import PublishedData
from compss_train.worker import Shard, WorkerState, train

_Blocks: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...], list[Ref], list[Ref] | None]"
"""Numbers of blocks, of their first samples, and references to the blocks of x and y."""


@dataclass
class Fleet:
    """Submits the training tasks of a fit."""

    engine: Engine
    recipe: Ref
    data: PublishedData
    batching: Batching
    shuffle_seed: int | None
    """Seed that rows are shuffled by within a block, ``None`` for no such shuffle."""
    new_optimizer: bool
    """Whether every task begins with a new optimizer."""
    resources: Resources
    devices: list[str]
    states: list[WorkerState | Ref]
    """Each worker's state, replaced by the reference to the new one whenever it trains."""

    def train(self, worker: int, round_: Round, parameters: Ref) -> tuple[Ref, Ref]:
        """Submit a worker's training in a round; returns references to its parameters and measurements."""
        share = round_.shares[worker]
        blocks, starts, x, y = self._blocks(share)
        name = f"round {round_.number} on worker {worker}"
        shard = Shard(share, blocks, starts, self.batching, self.shuffle_seed, self.new_optimizer, name)
        trained, state, measured = self.engine.submit(
            train,
            self.recipe,
            parameters,
            self.states[worker],
            x,
            y,
            shard,
            self.devices[worker],
            returns=3,
            resources=self.resources,
        )
        self._replace_state(worker, state)
        return trained, measured

    def _blocks(self, share: Share) -> _Blocks:
        if any(visit.samples is not None for visit in share):
            return self._all_blocks  # a total shuffle takes samples from everywhere
        return self._select(tuple(dict.fromkeys(visit.block for visit in share)))

    @cached_property
    def _all_blocks(self) -> _Blocks:
        return self._select(tuple(range(len(self.data.sizes))))

    def _select(self, numbers: tuple[int, ...]) -> _Blocks:
        starts = tuple(self.data.starts[number] for number in numbers)
        return numbers, starts, *self.data.select(numbers)

    def _replace_state(self, worker: int, state: Ref) -> None:
        before, self.states[worker] = self.states[worker], state
        if isinstance(before, Ref):
            self.engine.delete([before])
