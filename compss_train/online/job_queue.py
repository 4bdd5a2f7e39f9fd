"""The thread that runs the commands of a queue, so that the event loop never waits for them."""

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from compss_train._utils import Closable
from compss_train.online.job_journal import JobJournal
from compss_train.online.jobs import COMMAND_SECONDS, Jobs, QueueError

_LONGEST_PAUSE = 30
"""How many times ``every`` the pause after failures becomes at most; it doubles until then."""

_CLOSING_SECONDS = 10.0
"""How long a study that goes on waits for a command that runs."""


@dataclass(frozen=True)
class Submitted:
    """A job was submitted."""

    name: str
    job_id: str
    earlier: bool
    """Whether an earlier program has submitted it."""


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


@dataclass
class _Submission:
    """A job that is to be submitted."""

    name: str
    variables: Mapping[str, str]
    due: float = 0.0
    """When, at the soonest."""


class JobQueue(Closable):
    """Submits jobs, asks every few seconds which are alive, and cancels, all in one thread.

    It writes each job to a journal, before and after it is submitted: the next program finds jobs
    there that no save knows. A submission whose outcome is not known is not tried again before the
    queue was asked for a job of that name, if ``Jobs`` has ``find``.

    Parameters
    ----------
    watched:
        By the names of the jobs of an earlier program that may be alive, their ids.
    ending:
        The ids of others that may still be in the queue.
    attempts:
        By the names of jobs that an earlier program was about to submit, when it began to (Unix
        time).
    """

    def __init__(
        self,
        jobs: Jobs,
        journal: JobJournal,
        *,
        watched: Mapping[str, str],
        ending: Iterable[str],
        attempts: Mapping[str, float],
    ) -> None:
        self._jobs = jobs
        self._journal = journal
        self._watched = dict(watched)
        """By the names of the jobs that may be alive, their ids."""
        self._ending = set(ending)
        """The ids of jobs that nobody waits for, and that may still be in the queue."""
        self._attempts = {name: _answered(began) for name, began in attempts.items()}
        """By the names of submissions whose outcome is not known, until when one may come: 0 for
        those of this program, whose commands have ended.
        """
        self._submissions: deque[_Submission] = deque()
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

    @property
    def ending(self) -> int:
        """How many jobs nobody waits for that may still be in the queue."""
        with self._changed:
            return len(self._ending)

    def submit(self, name: str, variables: Mapping[str, str]) -> None:
        """Submit a job soon."""
        with self._changed:
            self._submissions.append(_Submission(name, variables))
            self._changed.notify()

    def forget(self, name: str, *, cancel: bool = False, gone: bool = False) -> None:
        """Wait for a job no more, and cancel it if so asked; one that waits here is not submitted.

        It is in the queue until that does not list it any more, or if it is known to be ``gone``.
        """
        with self._changed:
            kept = [submission for submission in self._submissions if submission.name != name]
            self._submissions = deque(kept)
            job_id = self._watched.pop(name, None)
            if job_id is None:
                return
            if not gone:
                self._ending.add(job_id)
            if cancel:
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
            unheard = [job_id for name in self._attempts for job_id in self._found(name)]
            for job_id in dict.fromkeys([*self._cancelled, *self._watched.values(), *unheard]):
                self._cancel(job_id)

    def _step(self) -> bool:
        """Run the next command that is due; return False once closed."""
        with self._changed:
            if self._closed:
                return False
            now = time.monotonic()
            look_at = self._look_pause.until if self._watched or self._ending else math.inf
            submit_at = min((submission.due for submission in self._submissions), default=math.inf)
            submit_at = max(submit_at, self._submission_pause.until)
            soonest = min(look_at, submit_at)
            if not self._cancelled and soonest > now:
                self._changed.wait(None if soonest == math.inf else soonest - now)
                return True
        if self._cancelled:
            self._cancel(self._cancelled.popleft())
        elif look_at <= now:
            self._look()
        else:
            self._submit_next(now)
        return True

    def _cancel(self, job_id: str) -> None:
        try:
            self._jobs.cancel_job(job_id)
        except QueueError as error:
            self._events.put(Unknown(str(error)))

    def _look(self) -> None:
        with self._changed:
            ending = frozenset(self._ending)
            asked = ending.union(self._watched.values())
        try:
            alive = self._jobs.living(sorted(asked))
        except QueueError as error:
            if not self._look_pause.failures:
                self._events.put(Unknown(f"{error}; the jobs that ran are taken to run on"))
            self._look_pause.fail()
            return
        self._look_pause.succeed(self._jobs.every)
        gone = ending - alive
        with self._changed:
            self._ending -= gone
        self._note(lambda: self._journal.gone(sorted(gone)))
        self._events.put(Seen(asked, frozenset(alive)))

    def _submit_next(self, now: float) -> None:
        """Submit the first job that is due, unless it is in the queue already."""
        with self._changed:
            due = [submission for submission in self._submissions if submission.due <= now]
            if not due:
                return
            submission = due[0]
        try:
            found_ids = self._found_unheard(submission.name)
            if found_ids:
                earlier = self._attempts[submission.name] > 0
                self._submitted(submission.name, found_ids[0], earlier=earlier)
            elif self._attempts.get(submission.name, 0.0) > now:  # the command may still run
                with self._changed:
                    submission.due = now + self._jobs.every
            else:
                self._submit(submission)
        except QueueError as error:
            self._submission_pause.fail()
            self._events.put(Refused(str(error), self._submission_pause.failures))

    def _found_unheard(self, name: str) -> Sequence[str]:
        """Return the ids of a job whose submission had an outcome that is not known."""
        if name not in self._attempts:
            return ()
        if self._jobs.find is None:
            self._attempts[name] = 0.0
            return ()
        return self._jobs.find_jobs(name)

    def _submit(self, submission: _Submission) -> None:
        self._note(lambda: self._journal.attempt(submission.name))
        self._attempts[submission.name] = 0.0
        job_id = self._jobs.submit_job(submission.name, submission.variables)
        self._submitted(submission.name, job_id, earlier=False)

    def _submitted(self, name: str, job_id: str, *, earlier: bool) -> None:
        del self._attempts[name]
        self._submission_pause.succeed()
        with self._changed:
            kept = [submission for submission in self._submissions if submission.name != name]
            is_wanted = len(kept) < len(self._submissions)
            self._submissions = deque(kept)
            if is_wanted:
                self._watched[name] = job_id
            else:  # it was forgotten meanwhile
                self._ending.add(job_id)
                self._cancelled.append(job_id)
        self._note(lambda: self._journal.job(name, job_id))
        if is_wanted:
            self._events.put(Submitted(name, job_id, earlier))

    def _note(self, write: Callable[[], None]) -> None:
        """Write to the journal, until that fails."""
        try:
            write()
        except OSError as error:
            self._journal = JobJournal(None)
            self._events.put(
                Unknown(f"jobs are not written to a file any more, only to saves: {error}")
            )

    def _found(self, name: str) -> Sequence[str]:
        """Return the ids of jobs of a name, as far as the queue says them."""
        if self._jobs.find is None:
            return ()
        try:
            return self._jobs.find_jobs(name)
        except QueueError as error:
            self._events.put(Unknown(str(error)))
            return ()


def _answered(began: float) -> float:
    """Return when a command that has begun at a Unix time has surely ended, by the other clock."""
    seconds = began + COMMAND_SECONDS - time.time()
    return time.monotonic() + min(max(seconds, 0.0), COMMAND_SECONDS)
