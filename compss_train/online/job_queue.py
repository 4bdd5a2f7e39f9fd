"""The thread that runs the commands of a queue, so that the event loop never waits for them."""

import json
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from compss_train._utils import Closable
from compss_train.online.jobs import Jobs, QueueError

JOURNAL = "jobs.jsonl"
"""The file in the folder of a study with the jobs that it has submitted."""
_LONGEST_PAUSE = 30
"""How many times ``every`` the pause after failures becomes at most; it doubles until then."""

_CLOSING_SECONDS = 10.0
"""How long a study that goes on waits for a command that runs."""


@dataclass(frozen=True)
class Submitted:
    """A job was submitted."""

    name: str
    job_id: str


@dataclass(frozen=True)
class Refused:
    """A job was not submitted; it is tried again later."""

    reason: str
    times: int
    """How often in a row."""


@dataclass(frozen=True)
class Seen:
    """The queue has said which jobs are alive."""

    asked: frozenset[str]
    alive: frozenset[str]


@dataclass(frozen=True)
class Unknown:
    """The queue has not said it, or has not cancelled a job."""

    reason: str


QueueEvent: TypeAlias = Submitted | Refused | Seen | Unknown | BaseException


class _Pause:
    """When something may be done next: after failures ever later."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.failures = 0
        """How many, in a row."""
        self.until = 0.0

    def succeed(self, seconds: float = 0.0) -> None:
        """Note a success; do it again after so many seconds."""
        self.failures = 0
        self.until = time.monotonic() + seconds

    def fail(self) -> None:
        """Note a failure."""
        factor = min(2**self.failures, _LONGEST_PAUSE)
        self.failures += 1
        self.until = time.monotonic() + factor * self._seconds


class JobQueue(Closable):
    """Submits jobs, asks every few seconds which are alive, and cancels, all in one thread.

    It writes each job to a ``journal``, a file with a line for each, before it tells the event
    loop: the next program finds jobs there that no save knows.
    """

    def __init__(self, jobs: Jobs, journal: Path | None, watched: Mapping[str, str]) -> None:
        self._jobs = jobs
        self._journal = journal
        self._watched = dict(watched)
        """By the names of the jobs that may be alive, their ids."""
        self._submissions: deque[tuple[str, Mapping[str, str]]] = deque()
        """Names and variables of jobs to submit."""
        self._cancelled: deque[str] = deque()
        """Ids of jobs to cancel."""
        self._events: queue.SimpleQueue[QueueEvent] = queue.SimpleQueue()
        self._submission_pause = _Pause(jobs.every)
        self._look_pause = _Pause(jobs.every)
        self._changed = threading.Condition()
        """Guards all of these."""
        self._closed = False
        self._cancels_all = False
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
        self._thread.start()

    def submit(self, name: str, variables: Mapping[str, str]) -> None:
        """Submit a job soon."""
        with self._changed:
            self._submissions.append((name, variables))
            self._changed.notify()

    def forget(self, name: str, *, cancel: bool = False) -> None:
        """Watch a job no more, and cancel it if so asked; one that waits here is not submitted."""
        with self._changed:
            kept = [(other, variables) for other, variables in self._submissions if other != name]
            self._submissions = deque(kept)
            job_id = self._watched.pop(name, None)
            if cancel and job_id is not None:
                self._cancelled.append(job_id)
                self._changed.notify()

    def events(self) -> list[QueueEvent]:
        """Return what has happened since the last call."""
        events: list[QueueEvent] = []
        while not self._events.empty():
            events.append(self._events.get())
        return events

    def close(self, *, cancel: bool = True) -> None:
        """End the thread, by default when all jobs are cancelled."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._cancels_all = cancel
            self._changed.notify()
        self._thread.join(None if cancel else _CLOSING_SECONDS)

    # In the thread

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:  # which ends the fit
            self._events.put(error)
        with self._changed:
            while not self._closed:
                self._changed.wait()
        if self._cancels_all:
            for job_id in [*self._cancelled, *self._watched.values()]:
                self._cancel(job_id)

    def _step(self) -> bool:
        """Run the next command that is due; return False once closed."""
        with self._changed:
            if self._closed:
                return False
            now = time.monotonic()
            look_at = self._look_pause.until if self._watched else math.inf
            submit_at = self._submission_pause.until if self._submissions else math.inf
            soonest = min(look_at, submit_at)
            if not self._cancelled and soonest > now:
                self._changed.wait(None if soonest == math.inf else soonest - now)
                return True
        if self._cancelled:
            self._cancel(self._cancelled.popleft())
        elif look_at <= now:
            self._look()
        else:
            self._submit()
        return True

    def _cancel(self, job_id: str) -> None:
        try:
            self._jobs.cancel_job(job_id)
        except QueueError as error:
            self._events.put(Unknown(str(error)))

    def _look(self) -> None:
        with self._changed:
            asked = frozenset(self._watched.values())
        try:
            alive = self._jobs.living(sorted(asked))
        except QueueError as error:
            if not self._look_pause.failures:
                self._events.put(Unknown(f"{error}; the jobs that ran are taken to run on"))
            self._look_pause.fail()
            return
        self._look_pause.succeed(self._jobs.every)
        self._events.put(Seen(asked, frozenset(alive)))

    def _submit(self) -> None:
        with self._changed:
            if not self._submissions:
                return
            name, variables = self._submissions[0]
        try:
            job_id = self._jobs.submit_job(name, variables)
        except QueueError as error:
            self._submission_pause.fail()
            self._events.put(Refused(str(error), self._submission_pause.failures))
            return
        self._submission_pause.succeed()
        with self._changed:
            is_wanted = bool(self._submissions) and self._submissions[0][0] == name
            if is_wanted:
                self._submissions.popleft()
                self._watched[name] = job_id
            else:  # it was forgotten meanwhile
                self._cancelled.append(job_id)
        if not is_wanted:
            return
        try:
            write_journal(self._journal, name, job_id)
        except OSError as error:
            self._journal = None
            self._events.put(
                Unknown(f"jobs are not written to a file any more, only to saves: {error}")
            )
        self._events.put(Submitted(name, job_id))


def write_journal(journal: Path | None, name: str, job_id: str) -> None:
    """Add a job to a journal, if there is one."""
    if journal is not None:
        with journal.open("a") as file:
            file.write(json.dumps({"simulation": name, "job": job_id}) + "\n")


def read_journal(journal: Path) -> dict[str, str]:
    """Return the last id of each name; nothing of a line that was not written to its end."""
    ids: dict[str, str] = {}
    if not journal.exists():
        return ids
    for line in journal.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
            ids[str(entry["simulation"])] = str(entry["job"])
        except (ValueError, KeyError, TypeError):
            continue
    return ids
