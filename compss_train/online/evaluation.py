"""Evaluating while training goes on: tasks whose result the coordinator is told, so that it need not wait."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from compss_train._utils.closing import Closable
from compss_train.engines import Ref
from compss_train.model.parameters import Parameters
from compss_train.online.connection import Address
from compss_train.training.inference import Inference
from compss_train.training.stopping import TICK, Stopping

Sums = dict[str, Any]


def tell_evaluated(sums: Sequence[Sums], number: int, director: Address) -> None:
    """Tell the coordinator that an evaluation is there: the task that takes its results, when they are."""
    with suppress(OSError), director.connect({"hello": "evaluation"}) as connection:
        connection.send({"evaluated": number})


class Evaluation(Closable):
    """Evaluates parameters on held-out samples, one evaluation at a time."""

    def __init__(self, inference: Inference, director: Address) -> None:
        self._inference, self._director = inference, director
        self._published: list[Ref] = []
        self._sums: list[Ref] = []
        self._number = 0

    def start(self, parameters: Parameters, *, told: bool = True) -> None:
        """Submit the evaluation of these parameters; ``told`` has the result told when it is there."""
        engine = self._inference.engine
        self._number += 1
        self._published = [engine.publish(parameters)]
        self._sums = self._inference.evaluate(self._published[0])
        if told:
            args = list(self._sums), self._number, self._director
            self._published.append(engine.submit(tell_evaluated, *args, priority=True))

    def is_there(self, number: int | None = None) -> bool:
        """Tell whether the result is there, or none will come; ``number`` is that of a result that was told."""
        return number == self._number or all(self._inference.engine.ended(ref) for ref in self._sums)

    def wait(self, stopping: Stopping) -> list[Sums] | None:
        """Return what the tasks have measured, waiting for it, but not where the fit is to stop at once.

        Raises what they raise.
        """
        engine = self._inference.engine
        while not engine.wait(self._sums, TICK):
            if stopping.urgent:
                return None
        return engine.fetch(self._sums, small=True)

    def end(self) -> None:
        """Free what the last one has left."""
        self._inference.engine.delete([*self._published, *self._sums])
        self._published, self._sums = [], []

    def close(self) -> None:
        """Free the samples."""
        self._inference.data.delete()
