"""``KnownResults``: what tasks have come to, so that many simulations of the same fits train each
round once.
"""

import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any
from unittest.mock import patch

from compss_train.engines.codec import Bytes, decode, dumps
from compss_train.engines.task_graph import Task
from tests.simulation.engine.values import HeldValue
from tests.simulation.stand_ins import EPOCH

CHECKED = 16
"""One in so many known tasks runs all the same, and must have the same results."""

MOST = 50_000
"""How many tasks are known, with about 8 kB each; then all are forgotten."""


class KnownResults:
    """Encoded results of tasks that have run, by their functions and encoded inputs, over many
    simulations.

    A task is a function of its inputs, as it reads the same time of the day here whenever it runs.
    This is checked: one in ``CHECKED`` tasks whose results are known runs all the same, and
    ``check`` raises if they differ.
    """

    def __init__(self) -> None:
        self._results: dict[bytes, list[Bytes]] = {}
        self.found = 0
        """How often the results of a task were known."""
        self._differences: list[str] = []

    def __call__(
        self, task: Task, inputs: Sequence[Any], run: Callable[[], list[Bytes]]
    ) -> list[Bytes]:
        """Return the results of a task, which ``run`` runs if they are not known.

        Raises what ``run`` raises.
        """
        with patch.object(time, "time", lambda: EPOCH):
            return self._of(_key(task, inputs), task, run)

    def _of(self, key: bytes, task: Task, run: Callable[[], list[Bytes]]) -> list[Bytes]:
        known = self._results.get(key)
        if known is None:
            return self._remember(key, run())
        self.found += 1
        if self.found % CHECKED == 0 and _bits(results := run()) != _bits(known):
            values = [[decode(result) for result in each] for each in (results, known)]
            self._differences.append(
                f"{task.function!r} has different results for the same inputs: {values}"
            )
        return known

    def check(self) -> None:
        """Raise ``RuntimeError`` if tasks had other results than before, since the last call.

        They do not raise themselves: what comes of a task may be lost, as that of one that runs
        twice.
        """
        differences = self._differences
        self._differences = []
        if differences:
            raise RuntimeError(differences[0])

    def _remember(self, key: bytes, results: list[Bytes]) -> list[Bytes]:
        if len(self._results) >= MOST:
            self._results.clear()
        self._results[key] = results
        return results


def _bits(results: Sequence[Bytes]) -> list[bytes]:
    return [result.tobytes() for result in results]


def _key(task: Task, inputs: Sequence[Any]) -> bytes:
    """Return a digest of a task's function, inputs and number of results."""
    data, buffers = dumps(
        (task.function, task.resources.cpus, len(task.outputs), _with_digests(inputs))
    )
    digest = blake2b(data)
    for buffer in buffers:
        digest.update(buffer)
    return digest.digest()


def _with_digests(inputs: Sequence[Any]) -> list[Any]:
    """Put digests in the place of values in the engine."""
    return [
        blake2b(item.encoded()).digest()
        if isinstance(item, HeldValue)
        else _with_digests(item)
        if isinstance(item, list)
        else item
        for item in inputs
    ]
