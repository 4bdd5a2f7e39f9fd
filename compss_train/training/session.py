"""A session: what the engine holds for a built model from one call of the trainer to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from compss_train.data.order import worker_seed
from compss_train.engines import Engine, Ref, Resources
from compss_train.exceptions import EngineClosedError
from compss_train.model.lr_schedules import LrSchedule
from compss_train.model.parameters import Parameters
from compss_train.model.training_spec import TrainingSpec
from compss_train.training.data_source import DataSource
from compss_train.training.fit_options import FitOptions
from compss_train.training.inference import Inference
from compss_train.training.task_submission import WorkerGroup
from compss_train.training.worker import WorkerState


class Session:
    """The published recipe, and each worker's device and state, in one engine."""

    def __init__(
        self, engine: Engine, training_spec: TrainingSpec, devices: list[str], seed: int, threads: int
    ) -> None:
        self.engine = engine
        self.net = training_spec.net
        self.training_spec = engine.publish(training_spec)
        self.devices = devices
        self.resources = Resources(cpus=threads, gpus=int(devices[0] != "cpu"))
        self.states: list[WorkerState | Ref] = [*_new_states(seed, len(devices))]

    def take(self, states: Sequence[WorkerState], seed: int) -> None:
        """Have workers go on from these states, on CPUs without what belongs to a GPU; the others begin anew."""
        self.engine.delete([state for state in self.states if isinstance(state, Ref)])
        all_states = [*states, *_new_states(seed, len(self.devices))[len(states) :]]
        placed = zip(all_states, self.devices, strict=False)
        self.states[:] = [state if device != "cpu" else state.on_cpu() for state, device in placed]

    def fleet(
        self, data: DataSource, options: FitOptions, seed: int, schedule: LrSchedule | None = None
    ) -> WorkerGroup:
        """Publish samples to train on."""
        return WorkerGroup(
            self.engine,
            self.training_spec,
            data.publish(self.engine),
            batching=options.batching(data.sizes),
            shuffle_seed=seed if options.shuffle_block_data else None,
            new_optimizer=options.optimizer_state == "reset",
            buffer=options.buffer,
            seed=seed,
            pools=options.partial_shuffle(data.sizes),
            file_buffer=options.file_buffer,
            resources=self.resources,
            devices=self.devices,
            states=self.states,
            schedule=schedule,
        )

    def inference(self, data: DataSource, batch_size: int) -> Inference:
        """Publish samples to evaluate or predict on."""
        published = data.publish(self.engine)
        return Inference(self.engine, self.training_spec, published, batch_size, self.resources, self.devices)

    @contextmanager
    def inferring(
        self, data: DataSource, batch_size: int, parameters: Parameters
    ) -> Iterator[tuple[Inference, Ref]]:
        """Give what evaluates or predicts, and the published parameters; free both afterwards."""
        inference = self.inference(data, batch_size)
        published = self.engine.publish(parameters)
        try:
            yield inference, published
        finally:
            with suppress(EngineClosedError):
                self.engine.delete([published])
                inference.data.delete()

    def close(self) -> None:
        """Free what the engine holds for the model, if it is still there."""
        with suppress(EngineClosedError):
            self.engine.delete([self.training_spec, *(state for state in self.states if isinstance(state, Ref))])


def _new_states(seed: int, workers: int) -> list[WorkerState]:
    return [WorkerState(None, worker_seed(seed, worker)) for worker in range(workers)]
