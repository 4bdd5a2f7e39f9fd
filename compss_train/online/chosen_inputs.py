"""The inputs that a sampler chooses, in the coordinator: its draws, its table, their record."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.nested import leaves, map_leaves
from compss_train.engines import calls
from compss_train.model import parameters as params
from compss_train.model.devices import CPU
from compss_train.model.replica import ModelReplica
from compss_train.model.training_spec import TrainingSpec
from compss_train.model.value_encoding import to_json
from compss_train.online.input_samplers import InputSampler
from compss_train.online.inputs import FAILED, Inputs, own_copy
from compss_train.online.simulation_table import SimulationTable
from compss_train.reports.records import Record

COPIES = 5
"""Maximum number of copies of the network that predict: the newest, and those of earlier draws."""
_BATCH = 1024
"""Samples that are predicted at a time."""


class ChosenInputs(Inputs):
    """Iterates over the inputs that a sampler chooses, and keeps its table.

    ``on_draw`` gets the record of each input.

    Raises ``TypeError`` for an input or a state that no save could hold, and ``ValueError`` if the
    first draw already returns none.
    """

    def __init__(
        self, sampler: InputSampler, predictor: "Predictor", on_draw: Callable[[Record], None]
    ) -> None:
        super().__init__(())
        self._sampler = sampler
        self._predictor = predictor
        self._on_draw = on_draw
        self._table = SimulationTable(predictor)
        self._parts: dict[int, dict[int, NDArray[np.float64]]] = {}
        """By simulation, what each worker has reported of it last."""

    def _next_value(self) -> Any:
        simulation = len(self.samples)
        if simulation < len(self._table):  # an earlier program has drawn it
            return self._table.inputs[simulation]
        self._predictor.renew()
        name = type(self._sampler).__name__
        with calls.intra_op_threads(1):  # workers train on the other cores
            value = own_copy(self._sampler.next(self._table))
        if value is None:
            if not simulation:
                raise ValueError(f"{name} returned no input at all: make a new one for each fit")
            raise StopIteration
        to_json(value, f"the input that {name} returned", {})
        if not simulation:
            to_json(self._sampler.state_dict(), f"{name}.state_dict()", {})
        plain = map_leaves(lambda leaf: leaf.tolist() if hasattr(leaf, "tolist") else leaf, value)
        self._on_draw({"simulation": simulation, "input": plain, "origin": self._sampler.origin})
        self._table.begin(value)
        return value

    def end(self, simulation: int, samples: int) -> None:
        """Record a simulation's number of samples, also in the table."""
        super().end(simulation, samples)
        self._table.set(simulation, complete=samples >= 0, failed=samples == FAILED)

    def report(self, worker: int, rows: NDArray[np.float64]) -> None:
        """Take in the report of a worker on the losses of its samples.

        Those of other programs' samples do not count.
        """
        for number, *values in rows.tolist():
            simulation = int(number)
            if simulation >= len(self._table):
                continue
            parts = self._parts.setdefault(simulation, {})
            parts[worker] = np.array(values)
            by_worker = [part for _, part in sorted(parts.items())]
            trained, excess, samples, *sums = np.sum(by_worker, 0)
            loss, first_loss = (total / samples if samples else np.nan for total in sums)
            self._table.set(
                simulation, trained=int(trained), loss=loss, first_loss=first_loss, excess=excess
            )

    def state_dict(self, incomplete: Iterable[int]) -> dict[str, Any]:
        """Return what ``resume`` needs: also the sampler, its draws, and the reports on them."""
        parts = [
            [simulation, worker, *values]
            for simulation, by_worker in self._parts.items()
            for worker, values in by_worker.items()
        ]
        return {
            **super().state_dict(incomplete),
            "sampler": self._sampler.state_dict(),
            "table": self._table.state_dict(),
            "parts": np.array(parts, np.float64),
            "copies": self._predictor.copies,
        }

    def resume(self, saved: dict[str, Any]) -> None:
        """Iterate over the inputs that were drawn; then ``next`` draws more."""
        self._sampler.load_state_dict(saved["sampler"])
        self._table.load_state_dict(saved["table"])
        for simulation, worker, *values in saved["parts"].tolist():
            parts = self._parts.setdefault(int(simulation), {})
            parts[int(worker)] = np.array(values)
        self._predictor.copies = saved["copies"]
        super().resume(saved)


class Predictor:
    """Predicts with the global parameters and those of the last draws, on this process's CPU."""

    def __init__(self, spec: TrainingSpec, pull: Callable[[], params.Parameters]) -> None:
        self._spec = spec
        self._pull = pull
        self.copies: list[params.Parameters] = []
        """Those that predict, the newest last."""
        self._is_new = False
        """Whether the newest of them are of this draw."""

    def renew(self) -> None:
        """Begin another draw, which predicts with newer parameters."""
        self._is_new = False

    def __call__(self, x: Any, copies: int) -> NDArray[Any]:
        """Return the outputs of up to so many of the newest copies, shape (copies, n, ...)."""
        if not self._is_new:
            self.copies = [*self.copies[1 - COPIES :], self._pull()]
            self._is_new = True
        inputs = map_leaves(torch.as_tensor, x)
        return np.stack([self._outputs(copy, inputs) for copy in self.copies[-copies:]])

    @torch.no_grad()
    def _outputs(self, copy: params.Parameters, x: Any) -> NDArray[Any]:
        replica = ModelReplica(self._spec, copy, CPU, training=False)
        outputs: list[torch.Tensor] = []
        for start in range(0, len(leaves(x)[0]), _BATCH):
            batch = map_leaves(partial(_rows, start=start), x)
            output = replica.predict(replica.transformed(batch))
            if not isinstance(output, torch.Tensor):
                raise TypeError("table.predict needs a network whose output is one tensor")
            outputs.append(output)
        return torch.cat(outputs).numpy()


def _rows(leaf: torch.Tensor, start: int) -> torch.Tensor:
    return leaf[start : start + _BATCH]
