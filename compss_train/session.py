"""A session: what the engine holds for a built model from one call of the trainer to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from compss_train.data.order import worker_seed
from compss_train.engines import Engine, Ref, Resources
from compss_train.exceptions import EngineClosedError
from compss_train.fleet import Fleet
from compss_train.given import Given
from compss_train.inference import Inference
from compss_train.options import FitOptions
from compss_train.parameters import Parameters
from compss_train.schedules import LrSchedule
from compss_train.worker import Recipe, WorkerState


class Session:
    """The published recipe, and each worker's device and state, in one engine."""

    def __init__(self, engine: Engine, recipe: Recipe, devices: list[str], seed: int, threads: int) -> None:
        self.engine = engine
        self.net = recipe.net
        self.recipe = engine.publish(recipe)
        self.devices = devices
        self.resources = Resources(cpus=threads, gpus=int(devices[0] != "cpu"))
        self.states: list[WorkerState | Ref] = [*_new_states(seed, len(devices))]

    def take(self, states: Sequence[WorkerState], seed: int) -> None:
        """Have workers go on from these states, on CPUs without what belongs to a GPU; the others begin anew."""
        self.engine.delete([state for state in self.states if isinstance(state, Ref)])
        all_states = [*states, *_new_states(seed, len(self.devices))[len(states) :]]
        placed = zip(all_states, self.devices, strict=False)
        self.states[:] = [state if device != "cpu" else state.on_cpu() for state, device in placed]

    def fleet(self, data: Given, options: FitOptions, seed: int, schedule: LrSchedule | None = None) -> Fleet:
        """Publish samples to train on."""
        return Fleet(
            self.engine,
            self.recipe,
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

    def inference(self, data: Given, batch_size: int) -> Inference:
        """Publish samples to evaluate or predict on."""
        published = data.publish(self.engine)
        return Inference(self.engine, self.recipe, published, batch_size, self.resources, self.devices)

    @contextmanager
    def inferring(self, data: Given, batch_size: int, parameters: Parameters) -> Iterator[tuple[Inference, Ref]]:
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
            self.engine.delete([self.recipe, *(state for state in self.states if isinstance(state, Ref))])


def _new_states(seed: int, workers: int) -> list[WorkerState]:
    return [WorkerState(None, worker_seed(seed, worker)) for worker in range(workers)]
