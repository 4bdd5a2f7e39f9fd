"""``Session``: the values that the engine holds for a built model from one call of the trainer to the next."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from compss_train.data.order import worker_seed
from compss_train.engines import Engine, Ref, Resources
from compss_train.exceptions import EngineClosedError
from compss_train.model.lr_schedules import LrSchedule
from compss_train.model.parameters import Parameters
from compss_train.model.training_spec import TrainingSpec
from compss_train.model.weighted_mean import aligned_ranges, ranges_for_costs
from compss_train.training.build_arguments import check_picklable
from compss_train.training.data_source import DataSource
from compss_train.training.fit_options import FitOptions
from compss_train.training.inference import EVALUATION_BATCH, Inference
from compss_train.training.published_data import PublishedData
from compss_train.training.training_state import NOTHING_KEPT, TrainingState, fetch_states, state_refs
from compss_train.training.worker_group import WorkerGroup
from compss_train.worker import GroupState, Step, WorkerCallback, WorkerState

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
        self._sample_seconds = (
            FLOPS_OF_WEIGHT / FLOPS_PER_SECOND * sum(p.numel() for p in training_spec.net.parameters())
        )
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

    def worker_group(
        self,
        data: DataSource,
        options: FitOptions,
        seed: int,
        schedule: LrSchedule | None = None,
        callbacks: Sequence[WorkerCallback] = (),
        traced: Callable[[int], Collection[int]] = lambda number: (),
    ) -> WorkerGroup:
        """Publish the samples and return the workers that train on them."""
        sharing = min(data.shares(options.order), len(self.devices))
        # Each worker has a task of its own where it merges by itself, where sums would have more bytes than
        # compressed changes, and on GPUs, which workers share in another order.
        merge = options.merge
        may_share = merge.kind == "synchronous" and merge.dtype is None and not self.resources.gpus
        places = self.engine.places(self.resources) if may_share else 0
        seconds = self._sample_seconds * options.worker_samples(data.sizes, sharing)
        active = ranges_for_costs(sharing, places, seconds, self.engine.traits.task_seconds)
        self.regroup([*active, *(range(n, n + 1) for n in range(sharing, len(self.devices)))])
        published = self._publish(data)
        return WorkerGroup(
            engine=self.engine,
            training_spec=published.training_spec or self.training_spec,
            data=published,
            reading=replace(
                options.reading(data.sizes, seed), structure=data.structure, may_skip=published.may_skip
            ),
            step=Step(
                optimizer_state=options.merge.optimizer_state or "keep",
                dtype=options.merge.dtype,
                callbacks=callbacks,
            ),
            resources=self.resources,
            devices=self.devices,
            groups=self.groups,
            states=self.states,
            schedule=schedule,
            traced=traced,
        )

    def _publish(self, data: DataSource) -> PublishedData:
        """Publish samples, and a training spec for tasks on them if that is to read them.

        Raises ``TypeError`` for a data set that cannot be pickled.
        """
        published = data.publish(self.engine)
        if data.reader is not None:
            try:
                published.training_spec = self.engine.publish(replace(self._spec, samples=data.reader))
            except Exception:
                check_picklable(dataset=data.reader)  # names the attribute
                raise
        return published

    def inference(self, data: DataSource, batch_size: int | None = None) -> Inference:
        """Publish samples for evaluation or prediction, by default in batches of their own, or large ones."""
        published = self._publish(data)
        return Inference(
            engine=self.engine,
            training_spec=published.training_spec or self.training_spec,
            data=published,
            batch_size=batch_size or data.batch_size or EVALUATION_BATCH,
            resources=self.resources,
            devices=self.devices,
            seconds=self._sample_seconds * data.number_samples / 3,
        )

    @contextmanager
    def inference_with(
        self, parameters: Parameters, data: DataSource, batch_size: int | None
    ) -> Iterator[tuple[Inference, Ref]]:
        """Provide the inference and the published parameters; free both afterwards."""
        inference = self.inference(data, batch_size)
        published = self.engine.publish(parameters)
        try:
            yield inference, published
        finally:
            with suppress(EngineClosedError):
                self.engine.delete([published])
                inference.data.delete()

    def close(self) -> None:
        """Free the values of the model, unless the engine is closed already."""
        with suppress(EngineClosedError):
            self.engine.delete([self.training_spec, *self._state_refs()])
