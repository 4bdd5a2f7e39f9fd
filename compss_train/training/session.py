"""``Session``: the values that the engine holds for a built model from one call of the trainer to the next."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from compss_train.data.order import worker_seed
from compss_train.engines import Engine, Ref, Resources
from compss_train.exceptions import EngineClosedError
from compss_train.model.training_spec import TrainingSpec
from compss_train.model.weighted_mean import aligned_ranges
from compss_train.training.data_source import DataSource
from compss_train.training.published_data import PublishedData
from compss_train.training.training_state import NOTHING_KEPT, TrainingState, fetch_states, state_refs
from compss_train.worker import GroupState, WorkerState

FLOPS_OF_WEIGHT = 6
"""Operations of a training step for each weight and sample: two in each of the forward pass, its two gradients."""

FLOPS_PER_SECOND = 1e10
"""Of a core, roughly: how many workers share a task follows from how long they train."""


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
        self.resources = Resources(cpus=threads, gpus=int(num_gpu > 0), gpu_tasks=num_gpu)
        weights = sum(parameter.numel() for parameter in training_spec.net.parameters())
        self.sample_seconds = FLOPS_OF_WEIGHT / FLOPS_PER_SECOND * weights
        """Roughly as long as a core trains on a sample."""
        self.groups: list[range] = aligned_ranges(len(devices), places=0)
        """The workers whose states are one value of the engine."""
        self.states: list[GroupState | Ref] = []
        self.merge_state = NOTHING_KEPT
        self.set_state(state, seed)

    def set_state(self, state: TrainingState, seed: int) -> None:
        """Continue from this state, without those of GPUs if the device is a CPU; other workers start anew."""
        self.engine.delete([*self._state_refs()])
        self.merge_state = state.merge
        states = state.workers
        new = (WorkerState(None, worker_seed(seed, worker)) for worker in range(len(states), len(self.devices)))
        placed = zip([*states, *new], self.devices, strict=False)
        self._set_states([state if device != "cpu" else state.on_cpu() for state, device in placed])

    def _set_states(self, states: Sequence[WorkerState]) -> None:
        self.states[:] = [tuple(states[worker] for worker in group) for group in self.groups]

    def regroup(self, groups: Sequence[range]) -> None:
        """Make the states of these workers one value each; waits for the states if they were grouped otherwise."""
        if list(groups) != list(self.groups):
            states = fetch_states(self.engine, self.states)
            self.engine.delete(state_refs(self.states))
            self.groups[:] = groups
            self._set_states(states)

    def state(self) -> TrainingState:
        """Return the state that the last fit left, waiting for the tasks that compute it."""
        return TrainingState(tuple(fetch_states(self.engine, self.states)), self.merge_state.fetched(self.engine))

    def forget_merges(self) -> None:
        """Free what merges have kept beside the parameters, which others have changed since."""
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
