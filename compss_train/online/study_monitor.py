"""``StudyMonitor``: writes what a study does, once a second, for ``compss-train watch``."""

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compss_train._utils.validation import warn_user
from compss_train.net import Client, shortened
from compss_train.online.inputs import shown
from compss_train.online.job_runs import Job
from compss_train.online.reports import Reports
from compss_train.online.sources import Sources
from compss_train.online.workers import Workers
from compss_train.reports.study_state import RUNNING, StudyState, here
from compss_train.training.trained_model import TrainedModel

_INTERVAL = 1.0
"""Seconds between two writes."""
_PAUSES = 50
"""How many times as long as a write the pause after it is, at least."""
_WINDOW = 10.0
"""Seconds over which the samples that arrive are counted."""


class StudyMonitor:
    """Writes the state of a study to a file in a folder, which is that of its checkpoints.

    If the disk is full, or fails, it warns once, and writes no more.
    """

    def __init__(
        self,
        folder: Path,
        sources: Sources,
        workers: Workers,
        *,
        reports: Reports,
        model: TrainedModel,
    ) -> None:
        self._folder = folder
        self._sources = sources
        self._workers = workers
        self._reports = reports
        self._model = model
        self._records = len(model.history)
        """How many records are of earlier fits."""
        self._started = time.time()
        self._next = 0.0
        """When the next write is due."""
        self._writes = True
        self._received: deque[tuple[float, int]] = deque()
        """Times, and the number of samples received by then."""

    def update(self) -> None:
        """Write what the study does, if a second has passed."""
        began = time.monotonic()
        if began >= self._next:
            self._write(RUNNING)
            ended = time.monotonic()
            self._next = max(began + _INTERVAL, ended + _PAUSES * (ended - began))

    def end(self, state: str) -> None:
        """Write how the study has ended."""
        self._write(state)

    def _write(self, state: str) -> None:
        if not self._writes:
            return
        try:
            self._state(state).write(self._folder)
        except OSError as error:
            self._writes = False
            warn_user(
                f"compss-train watch does not see this study any more: {error}; training continues"
            )

    def _state(self, state: str) -> StudyState:
        resumed_from = self._model.resumed_from
        records = self._model.history[self._records :]
        is_running = state == RUNNING
        return StudyState(
            state=state,
            **here(),
            started=self._started,
            written=time.time(),
            resumed_from=None if resumed_from is None else resumed_from.name,
            inputs={**self._sources.counts(), "awaited": self._sources.awaited},
            received=self._reports.received,
            received_per_second=self._received_per_second() if is_running else None,
            trained_per_second=records[-1]["samples_per_second"] if records else None,
            buffer=self._reports.held,
            workers=self._running_workers() if is_running else [],
            simulations=self._running_simulations() if is_running else [],
            senders=self._connected_senders() if is_running else [],
            failed=list(self._sources.runs.inputs.lost),
        )

    def _received_per_second(self) -> float | None:
        now = time.monotonic()
        received = self._reports.received
        while len(self._received) > 1 and now - self._received[1][0] >= _WINDOW:
            self._received.popleft()
        self._received.append((now, received))
        first_time, first_received = self._received[0]
        if now == first_time:
            return None
        # A worker that dies takes samples with it.
        return max(0, received - first_received) / (now - first_time)

    def _running_workers(self) -> list[dict[str, Any]]:
        return [
            {"worker": worker.number, **place_of(worker.client), "done": worker.done}
            for worker in self._workers.all
        ]

    def _running_simulations(self) -> list[dict[str, Any]]:
        now = time.monotonic()
        return [
            {
                "simulation": simulation.number,
                "input": shown(simulation.value),
                **place_of(task.client),
                "seconds": None if task.client is None else now - task.connected,
                "failures": simulation.failures,
                **({"job": task.job_id} if isinstance(task, Job) else {}),
            }
            for simulation, task in self._sources.runs.running
        ]

    def _connected_senders(self) -> list[dict[str, Any]]:
        return [
            {"name": client.greeting.get("name"), **place_of(client)}
            for client in self._sources.senders.connected
        ]


def place_of(client: Client | None) -> Mapping[str, Any]:
    """Return where a client says that it runs; ``None`` for what it does not say."""
    greeting = {} if client is None else client.greeting
    node = greeting.get("node")
    process = greeting.get("process")
    return {
        "node": shortened(node) if isinstance(node, str) else None,
        "process": process if isinstance(process, int) else None,
    }
