"""Merging commutatively with a quorum: nobody waits for late workers.

The workers that have arrived when a merge happens are merged as synchronously, and start together
from the result: those that are on time learn as one. Late ones go on, and enter the next merge with
their change from the parameters that they began from. If nobody is late, the bits are those of
synchronous merging. The grace period, a short wait for workers that are nearly done, is that of Liu
et al. 2024 (arXiv 2401.09135).
"""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from statistics import median

from compss_train.engines import Ref
from compss_train.model.parameters import Parameters
from compss_train.training.merge import Merge
from compss_train.training.merged import Parts
from compss_train.training.schedules.base import SubmittedRound
from compss_train.training.schedules.round_workers import RoundWorkers
from compss_train.training.schedules.synchronous import SynchronousSchedule
from compss_train.training.session import Session
from compss_train.worker.merging.merge import rebased

DEFAULT_QUORUM = 0.75
"""The default of ``Merge(quorum=...)``."""
DEFAULT_GRACE = 0.2
"""The share of a round's time of ``Merge(grace="auto")``."""

POLLS = 50
"""How often the coordinator looks for arrivals in the time of a usual round."""
SHORTEST_POLL = 0.001
"""Minimum number of seconds between two looks."""


@dataclass
class Quorum:
    """Decides when the workers that have arrived are merged."""

    share: float
    """The share of the workers that have to arrive."""
    grace: float
    """How long to wait for others then, as a share of the time that those took."""
    _since: float = math.inf
    """When the grace period began."""

    def is_due(
        self,
        now: float,
        arrived: Collection[float],
        running: Collection[tuple[float, float]],
        slots: int,
    ) -> bool:
        """Return whether to merge now, rather than to wait for others.

        ``arrived`` has how many seconds each worker took that has arrived; ``running`` has, of each
        other one, when it began and how long it took last. ``slots`` tasks run at a time: with more
        workers nobody is late, as some have to wait for a slot, and slow slots get fewer of them.
        """
        if not running:
            return True
        workers = len(arrived) + len(running)
        if workers > slots or len(arrived) < int(self.share * workers):
            self._since = math.inf
            return False
        usual = median(arrived)
        grace = self.grace * usual
        self._since = min(self._since, now)
        end = self._since + grace
        # Slow workers are not expected by then, and stopped ones were long ago.
        expected = (began + max(usual, seconds) for began, seconds in running)
        is_over = now >= end or not any(now - grace <= arrival <= end for arrival in expected)
        if is_over:
            self._since = math.inf
        return is_over


@dataclass
class _Running:
    """A worker's task that has not been merged."""

    round: SubmittedRound
    trained: Parts
    measured: Ref
    base: Parts
    """The parameters that the worker began from."""
    began: float
    last_seconds: float
    """How many seconds the worker took in its last round; 0 if it is in its first."""
    seconds: float | None = None
    """How long it took, once it has arrived."""


class QuorumSchedule(SynchronousSchedule):
    """Merges the workers that have arrived, once a quorum has and the grace period is over."""

    name = "commutative"
    by_rounds = False
    shares_tasks = False
    rounds_ahead = 8
    """Maximum number of rounds that the fastest worker may be ahead of the slowest."""

    def __init__(self, session: Session, merge: Merge, initial: Parameters) -> None:
        super().__init__(session, merge, initial)
        grace = DEFAULT_GRACE if merge.grace is None or merge.grace == "auto" else merge.grace
        self._quorum = Quorum(DEFAULT_QUORUM if merge.quorum is None else merge.quorum, grace)
        self._waiting: list[deque[tuple[RoundWorkers, SubmittedRound]]] = [
            deque() for _ in range(session.num_workers)
        ]
        """The rounds of each worker that have not begun."""
        self._running: dict[int, _Running] = {}
        self._seconds: dict[int, float] = {}
        """How long each worker took in its last round."""

    def submit(self, workers: RoundWorkers) -> SubmittedRound:
        """Start the workers that wait for a round; the others start when they have been merged."""
        submitted = SubmittedRound(
            workers=workers,
            tasks=[],
            measured={"workers": []},
            merged=self.merged,
            states=[*self.session.states],
            unmerged=sum(count > 0 for count in workers.round.counts),
        )
        for worker, waiting in enumerate(self._waiting):
            waiting.append((workers, submitted))
            self._begin(worker)
        return submitted

    def _begin(self, worker: int) -> None:
        """Start a worker's next round that has samples, unless the worker is running."""
        waiting = self._waiting[worker]
        while waiting and worker not in self._running:
            workers, submitted = waiting.popleft()
            if workers.round.counts[worker]:
                (mapped,) = self.train(workers, [range(worker, worker + 1)])
                submitted.tasks.append([worker])
                submitted.measured["workers"].append(mapped.reports)
                self._running[worker] = _Running(
                    round=submitted,
                    trained=mapped.results,
                    measured=mapped.reports,
                    base=self.merged.parameters,
                    began=time.monotonic(),
                    last_seconds=self._seconds.get(worker, 0.0),
                )
            submitted.states[worker] = self.session.states[worker]

    def wait(
        self, submitted: SubmittedRound, timeout: float, evaluate: Callable[[SubmittedRound], None]
    ) -> bool:
        """Merge the workers that have arrived, if it is time, and look again within ``timeout``."""
        now = time.monotonic()
        running = {task.measured: task for task in self._running.values() if task.seconds is None}
        newly_arrived = self.engine.arrived([*running])
        self.engine.fetch(newly_arrived, small=True)  # raises the exception of a task that failed
        for measured in newly_arrived:
            task = running.pop(measured)
            task.seconds = now - task.began
        arrived = {
            worker: task.seconds
            for worker, task in sorted(self._running.items())
            if task.seconds is not None
        }
        # Unless one of them may begin a new round, nobody gains by a merge without the others.
        if arrived and (not running or any(self._waiting[worker] for worker in arrived)):
            slots = self.engine.slots(self.session.resources)
            late = [(task.began, task.last_seconds) for task in running.values()]
            if self._quorum.is_due(now, arrived.values(), late, slots):
                for complete in self._merge_workers(arrived):
                    evaluate(complete)
        usual = median(self._seconds.values()) if self._seconds else 0.0
        soon = min(timeout, max(SHORTEST_POLL, usual / POLLS))
        if not submitted.unmerged:
            return self.engine.wait(submitted.refs, soon)
        tasks = self._running.values()
        self.engine.wait([task.measured for task in tasks if task.seconds is None], soon)
        return False

    def _merge_workers(self, seconds: Mapping[int, float]) -> list[SubmittedRound]:
        """Merge workers as synchronously, and start them together; return the complete rounds.

        ``seconds`` has how long each of these workers took.
        """
        tasks = {worker: self._running.pop(worker) for worker in seconds}
        self._seconds |= seconds
        weights = self.weights_of(
            {worker: (task.round, task.measured) for worker, task in tasks.items()}
        )
        trained = {worker: self._from_the_newest(task) for worker, task in tasks.items()}
        self.merged = self.merge_all(trained, weights)
        complete: list[SubmittedRound] = []
        for worker, task in tasks.items():
            self._begin(worker)
            task.round.unmerged -= 1
            if not task.round.unmerged:
                task.round.merged = self.merged
                complete.append(task.round)
        return complete

    def _from_the_newest(self, task: _Running) -> Parts:
        """Return what a worker trained; of a late one, its change from the newest parameters on."""
        newest = self.merged.parameters
        if task.base is newest:
            return task.trained
        buffers = self.session.names.buffers
        return [
            self.engine.submit(
                rebased, trained, base, current, buffers, priority=True, place=number
            )
            for number, (trained, base, current) in enumerate(
                zip(task.trained, task.base, newest, strict=True)
            )
        ]
