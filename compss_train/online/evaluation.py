"""Evaluating while training goes on: tasks whose result the coordinator is told, so that it need not wait."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from compss_train.engines import Ref
from compss_train.inference import Inference
from compss_train.online.connection import Address
from compss_train.parameter_server.base import Closable
from compss_train.parameters import Parameters

Sums = dict[str, Any]


def tell_evaluated(sums: Sequence[Sums], director: Address) -> None:
    """Send what evaluation tasks have measured to the coordinator: the task that takes their results."""
    with suppress(OSError), director.connect({"hello": "evaluation"}) as connection:
        connection.send({"evaluated": list(sums)})


class Evaluation(Closable):
    """Evaluates parameters on held-out samples, one evaluation at a time."""

    def __init__(self, inference: Inference, director: Address) -> None:
        self._inference, self._director = inference, director
        self._published: list[Ref] = []
        self._sums: list[Ref] = []

    def start(self, parameters: Parameters) -> None:
        """Submit the evaluation of these parameters, whose result will be told."""
        engine = self._inference.engine
        self._published = [engine.publish(parameters)]
        self._sums = self._inference.evaluate(self._published[0])
        self._published.append(engine.submit(tell_evaluated, list(self._sums), self._director, priority=True))

    def wait(self) -> list[Sums]:
        """Return what the tasks have measured, waiting for it; raises what they raise."""
        return self._inference.engine.fetch(self._sums, small=True)

    def end(self) -> None:
        """Free what the last one has left."""
        self._inference.engine.delete([*self._published, *self._sums])
        self._published, self._sums = [], []

    def close(self) -> None:
        """Free the samples."""
        self._inference.data.delete()
