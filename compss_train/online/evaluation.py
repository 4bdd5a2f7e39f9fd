"""Validation of an online fit: in tasks, while training continues."""

import itertools
from collections.abc import Sequence
from contextlib import suppress

from compss_train.engines import Ref
from compss_train.model.measurements import Measured, Measures
from compss_train.model.parameters import Parameters
from compss_train.net import Address
from compss_train.reports.records import AVERAGED_PREFIX, VALIDATION_PREFIX, Record
from compss_train.training.inference import Inference, warn_of_problems
from compss_train.training.stopping import TICK, Stopping


class Evaluation:
    """Evaluates parameters on held-out samples in tasks, one evaluation at a time."""

    def __init__(self, inference: Inference, coordinator: Address, stopping: Stopping) -> None:
        self._inference = inference
        self._coordinator = coordinator
        self._stopping = stopping
        self._held: list[Ref] = []
        """What the engine keeps until the result is fetched."""
        self._sums: dict[str, list[Ref]] = {}
        """The results of the tasks, by the prefixes of their names in records."""
        self._known_problems: set[str] = set()

    def start(
        self,
        parameters: Parameters,
        averaged: Parameters | None,
        reports: Sequence[Measured],
        *,
        notify: bool = True,
    ) -> None:
        """Submit the evaluation of these parameters, and of their average, if there is one.

        ``reports`` has one with the state of the model, if it has any. With ``notify`` the end will
        be noticed: engines that do not know what has arrived need a message for that, from another
        task.
        """
        engine = self._inference.engine
        for prefix, evaluated in ((VALIDATION_PREFIX, parameters), (AVERAGED_PREFIX, averaged)):
            if evaluated is not None:
                published = engine.publish(evaluated)
                self._held.append(published)
                self._sums[prefix] = self._inference.evaluate([published], reports)
        if notify and not engine.traits.interruptible:
            notified = engine.submit(notify_evaluated, self._refs, self._coordinator, priority=True)
            self._held.append(notified)

    @property
    def _refs(self) -> list[Ref]:
        return [*itertools.chain.from_iterable(self._sums.values())]

    @property
    def is_ready(self) -> bool:
        """Whether the result is available, or the tasks have failed, as far as the engine knows."""
        refs = self._refs
        return len(self._inference.engine.arrived(refs)) == len(refs)

    def result(self, measures: Measures) -> Record | None:
        """Wait for the fields of the result; ``None`` if the fit has to stop immediately.

        Raises the tasks' exceptions.
        """
        engine = self._inference.engine
        try:
            while not engine.wait(self._refs, TICK):
                if self._stopping.urgent:
                    return None
            fetched = {
                prefix: engine.fetch(sums, small=True) for prefix, sums in self._sums.items()
            }
        finally:
            self._held = []
            self._sums = {}
        record: Record = {}
        for prefix, measured in fetched.items():
            sums = list(itertools.chain.from_iterable(measured))
            warn_of_problems(sums, self._known_problems)
            record |= measures.values(sums, prefix)
        return record

    def warn_of_changes(self) -> None:
        """Warn of files with held-out samples that have changed."""
        self._inference.data.warn_of_changes()


def notify_evaluated(sums: Sequence[Measured], coordinator: Address) -> None:
    """Notify the coordinator of a completed evaluation: a task that depends on its results."""
    with suppress(OSError):
        coordinator.connect({"role": "evaluation"}).close()
