"""``Session``: what the engine holds for a built model; ``PublishedData``: what it holds of the samples."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train.data import BlockedTensor
from compss_train.data.block import RemoteBlock, load_block
from compss_train.data.order import worker_seed
from compss_train.engines import Engine, Ref, Resources
from compss_train.engines.codec import is_on_file
from compss_train.exceptions import EngineClosedError
from compss_train.model.training_spec import TrainingSpec
from compss_train.model.weighted_mean import aligned_ranges
from compss_train.training.build_arguments import check_picklable
from compss_train.training.data_source import DataSource
from compss_train.training.training_state import NOTHING_KEPT, TrainingState, fetch_states, state_refs
from compss_train.worker import GroupState, WorkerState

FLOPS_OF_WEIGHT = 6
"""Operations of a training step per weight and sample: two each for the forward pass and its two gradients."""

FLOPS_PER_SECOND = 1e10
"""Rough speed of a core; the training time decides how many workers share a task."""


class PublishedData:
    """The blocks of a data source, which an engine holds, or the names of its files; tasks get them by number.

    Tasks whose samples are read by a reader have their own training spec, with the reader. Raises ``TypeError`` for
    a data set that cannot be pickled.
    """

    def __init__(self, engine: Engine, source: DataSource, spec: TrainingSpec, training_spec: Ref) -> None:
        """``training_spec`` is a reference to ``spec``."""
        self.engine, self.source, self.training_spec = engine, source, training_spec
        blocks = [block for tensor in source.columns for block in tensor.blocks()]
        self.mapped = engine.traits.shared_memory or all(map(is_on_file, blocks))
        """Whether a task reads only the rows that it uses from a block."""
        self._columns = publish_columns(engine, source.columns)
        self._owned = list(chain.from_iterable(self._columns))
        if source.reader is not None:
            try:
                self.training_spec = engine.publish(replace(spec, samples=source.reader))
            except Exception:
                check_picklable(dataset=source.reader)  # names the attribute
                raise
            self._owned.append(self.training_spec)

    @property
    def read_ahead(self) -> int:
        """Number of files of the next round that tasks read ahead."""
        files = self.source.dataset
        return 0 if files is None or files.cache is None else files.file_buffer - 1

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The number of the first sample of each block or file."""
        return tuple(accumulate(self.source.sizes[:-1], initial=0))

    def inputs(self, numbers: Sequence[int], upcoming: Sequence[int] = ()) -> tuple[list[Ref], dict[str, Any]]:
        """Return the values for a task on these blocks, and the fields of its ``Reading``; see ``DataSource``."""
        return self.source.inputs(self._columns, numbers, upcoming)

    def holding(self, samples: NDArray[Any]) -> tuple[int, ...]:
        """Return the numbers of the blocks that hold these samples, ascending; all if few would be left out."""
        if len(samples) >= len(self.starts):
            return tuple(range(len(self.starts)))
        return tuple(sorted({*(np.searchsorted(self.starts, samples, side="right") - 1).tolist()}))

    def delete(self) -> None:
        """Free the blocks and the training spec with their reader, if any; files belong to the user."""
        self.engine.delete(self._owned)


def publish_columns(engine: Engine, columns: Sequence[BlockedTensor]) -> list[list[Ref]]:
    """Publish the blocks of x, y and the weights, as one value each where every value is costly for the engine."""
    remote = any(isinstance(block, RemoteBlock) for tensor in columns for block in tensor.blocks())
    if engine.traits.pays_by_value and len(columns) > 1 and not remote:
        rows = zip(*(tensor.blocks() for tensor in columns), strict=True)
        return [[engine.publish(blocks) for blocks in rows]]
    return [_publish_blocks(engine, tensor) for tensor in columns]


def _publish_blocks(engine: Engine, tensor: BlockedTensor) -> list[Ref]:
    """Publish the blocks of a tensor.

    If the engine keeps values in shared memory, the tensor's own blocks become views of them, so that the
    coordinator holds no second copy.
    """
    refs: list[Ref] = []
    for row in tensor.tensors:
        for column, block in enumerate(row):
            foreign = isinstance(block, RemoteBlock) and block.home != engine.name
            ref = engine.publish(load_block(block) if foreign else block)
            refs.append(ref)
            adoptable = engine.traits.shared_memory and not isinstance(block, np.memmap | RemoteBlock)
            held = engine.peek(ref) if adoptable else None
            row[column] = block if held is None else held
    return refs


class Session:
    """The published training spec, and each worker's device and state, in one engine."""

    def __init__(
        self,
        *,
        engine: Engine,
        training_spec: TrainingSpec,
        devices: list[str],
        state: TrainingState,
        seed: int,
        threads: int,
        num_gpu: int,
    ) -> None:
        self.engine = engine
        self.names = training_spec.names
        self._spec = training_spec.without_weights()
        self.training_spec = engine.publish(self._spec)
        self.devices = devices
        self.resources = Resources(cpus=threads, gpus=int(num_gpu > 0))
        weights = sum(parameter.numel() for parameter in training_spec.net.parameters())
        self.sample_seconds = FLOPS_OF_WEIGHT / FLOPS_PER_SECOND * weights
        """Rough estimate of the time, in seconds, that a core trains on a sample."""
        self.groups: list[range] = aligned_ranges(len(devices), places=0)
        """The groups of workers; each group's states are one value of the engine."""
        self.states: list[GroupState | Ref] = []
        self.merge_state = NOTHING_KEPT
        self.set_state(state, seed)

    def set_state(self, state: TrainingState, seed: int) -> None:
        """Continue from this state, without GPU states if the device is a CPU; other workers start fresh."""
        self.engine.delete([*self._state_refs()])
        self.merge_state = state.merge
        states = state.workers
        new = (WorkerState(None, worker_seed(seed, worker)) for worker in range(len(states), len(self.devices)))
        placed = zip([*states, *new], self.devices, strict=False)
        self._set_states([state if device != "cpu" else state.on_cpu() for state, device in placed])

    def _set_states(self, states: Sequence[WorkerState]) -> None:
        self.states[:] = [tuple(states[worker] for worker in group) for group in self.groups]

    def regroup(self, groups: Sequence[range]) -> None:
        """Make the states of each group one value; waits for the states if workers were grouped differently."""
        if list(groups) != list(self.groups):
            states = fetch_states(self.engine, self.states)
            self.engine.delete(state_refs(self.states))
            self.groups[:] = groups
            self._set_states(states)

    def state(self) -> TrainingState:
        """Return the state that the last fit left, waiting for the tasks that compute it."""
        return TrainingState(tuple(fetch_states(self.engine, self.states)), self.merge_state.fetched(self.engine))

    def forget_merges(self) -> None:
        """Free what merges have kept besides the parameters, because the parameters were replaced."""
        self.merge_state.free(self.engine, NOTHING_KEPT)
        self.merge_state = NOTHING_KEPT

    def _state_refs(self) -> Iterator[Ref]:
        yield from state_refs(self.states)
        yield from self.merge_state.refs()

    def publish(self, source: DataSource) -> PublishedData:
        """Make samples available to tasks."""
        return PublishedData(self.engine, source, self._spec, self.training_spec)

    def close(self) -> None:
        """Free the values of the model, unless the engine is closed already."""
        with suppress(EngineClosedError):
            self.engine.delete([self.training_spec, *self._state_refs()])
