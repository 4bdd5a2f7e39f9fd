"""The inputs that a sampler chooses, in the coordinator: its draws, the table that it sees, and
their record.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.nested import leaves, map_leaves
from compss_train.engines import calls
from compss_train.model import parameters as params
from compss_train.model import saved_state
from compss_train.model.devices import CPU
from compss_train.model.training_spec import ModelReplica, TrainingSpec
from compss_train.online.input_samplers import InputSampler, SimulationTable
from compss_train.online.inputs import Inputs
from compss_train.reports.records import Record

COPIES = 5
"""Maximum number of copies of the network that predict: the newest, and those of earlier draws."""
_BATCH = 1024


class ChosenInputs(Inputs):
    """Iterates over the inputs that a sampler chooses, and keeps its table; ``on_draw`` gets the
    record of each.

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
        # Of the reports of each worker, by simulation.
        self._parts: dict[int, dict[int, NDArray[np.float64]]] = {}

    def _next_value(self) -> Any:
        begun = len(self.samples)
        if begun < len(self._table):  # in an earlier life
            return self._table.inputs[begun]
        self._predictor.renew()
        name = type(self._sampler).__name__
        with calls.intra_op_threads(1):  # workers train on the other cores
            value = self._sampler.next(self._table)
        if value is None:
            if not begun:
                raise ValueError(f"{name} returned no input at all: make a new one for each fit")
            raise StopIteration
        saved_state.to_json(value, f"the input that {name} returned", {})
        if not begun:
            saved_state.to_json(self._sampler.state_dict(), f"{name}.state_dict()", {})
        shown = map_leaves(lambda leaf: leaf.tolist() if hasattr(leaf, "tolist") else leaf, value)
        self._on_draw({"simulation": begun, "input": shown, "origin": self._sampler.origin})
        self._table.begin(value)
        return value

    def end(self, simulation: int, samples: int) -> None:
        """Record a simulation's number of samples, also in the table."""
        super().end(simulation, samples)
        self._table.set(simulation, complete=samples >= 0)

    def report(self, worker: int, rows: NDArray[np.float64]) -> None:
        """Take in the report of a worker on the losses of its samples; what is of no simulation
        does not count.
        """
        for number, *values in rows.tolist():
            if (row := int(number)) >= len(self._table):
                continue
            parts = self._parts.setdefault(row, {})
            parts[worker] = np.array(values)
            trained, samples, loss, excess = np.sum([parts[each] for each in sorted(parts)], 0)
            self._table.set(
                row, trained=int(trained), loss=loss / samples if samples else np.nan, excess=excess
            )

    def state_dict(self, incomplete: Iterable[int]) -> dict[str, Any]:
        """Return what ``resume`` needs: also the state of the sampler, its draws, and what was
        reported of them.
        """
        parts = [
            [row, worker, *values]
            for row, own in self._parts.items()
            for worker, values in own.items()
        ]
        return {
            **super().state_dict(incomplete),
            "sampler": self._sampler.state_dict(),
            "table": self._table.state_dict(),
            "parts": np.array(parts, np.float64),
            "copies": self._predictor.copies,
        }

    def resume(self, saved: dict[str, Any]) -> None:
        """Iterate over the inputs that were drawn; ``next`` draws others then."""
        self._sampler.load_state_dict(saved["sampler"])
        self._table.load_state_dict(saved["table"])
        for row, worker, *values in saved["parts"].tolist():
            self._parts.setdefault(int(row), {})[int(worker)] = np.array(values)
        self._predictor.copies = saved["copies"]
        super().resume(saved)


class Predictor:
    """Predicts with the global parameters and those of the last draws, on the CPU of this
    process.
    """

    def __init__(self, spec: TrainingSpec, pull: Callable[[], params.Parameters]) -> None:
        self._spec = spec
        self._pull = pull
        self.copies: list[params.Parameters] = []
        """Those that predict, the newest last."""
        self._pulled = False

    def renew(self) -> None:
        """Begin another draw, which predicts with newer parameters."""
        self._pulled = False

    def __call__(self, x: Any, number: int) -> NDArray[Any]:
        """Return the outputs of the newest copies, up to a number of them, shape (copies, n,
        ...).
        """
        if not self._pulled:
            self.copies = [*self.copies[1 - COPIES :], self._pull()]
            self._pulled = True
        batch = map_leaves(torch.as_tensor, x)
        return np.stack([self._predicted(copy, batch) for copy in self.copies[-number:]])

    @torch.no_grad()
    def _predicted(self, copy: params.Parameters, x: Any) -> NDArray[Any]:
        replica = ModelReplica(self._spec, copy, CPU, training=False)
        samples = len(leaves(x)[0])
        batches = (
            map_leaves(partial(_rows, start=start), x) for start in range(0, samples, _BATCH)
        )
        outputs = [replica.predict(replica.transformed(each)) for each in batches]
        if not all(isinstance(each, torch.Tensor) for each in outputs):
            raise TypeError("table.predict needs a network whose output is one tensor")
        return torch.cat(outputs).numpy()


def _rows(part: torch.Tensor, start: int) -> torch.Tensor:
    return part[start : start + _BATCH]
