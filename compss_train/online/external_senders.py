"""Other programs that send samples, as the coordinator sees them."""

import math
import time
from collections.abc import Collection, Sequence
from typing import Any

from compss_train._utils.validation import warn_user
from compss_train.exceptions import SimulationError
from compss_train.net import Client, Header, MessageError, shortened
from compss_train.online.source_failures import SourceFailure
from compss_train.online.source_messages import (
    Finished,
    Progress,
    SamplesLost,
    SenderFailed,
    parse_sender_message,
)
from compss_train.online.stream_router import StreamRouter
from compss_train.online.workers import Worker

FIRST_NOTICE = 10.0
"""Seconds after which a warning says which senders are awaited; then again, each time that they
have doubled.
"""
_NAME_IT = (
    "give each SampleSender a name=: a program that is started again under its name sends what is "
    "missing"
)


class ExternalSenders:
    """Waits until the expected number of senders have completed their streams.

    ``timeout`` is the maximum number of seconds to wait for senders that are not connected.
    """

    def __init__(
        self, expected: int, router: StreamRouter, *, timeout: float | None = None
    ) -> None:
        self._expected = expected
        self._router = router
        self._timeout = math.inf if timeout is None else timeout
        self._waits_since: float | None = None
        """Since when the same senders have been awaited."""
        self._next_notice = FIRST_NOTICE
        """After how many seconds of that a warning is due."""
        self._streams: dict[str, int] = {}
        """The streams of senders that have a name."""
        self._active: dict[Client, int] = {}
        """The streams of those that are connected."""
        self._completed: dict[int, int] = {}
        """By stream, its number of samples once it is complete."""
        self._again: set[int] = set()
        """The streams of names that were complete, and whose samples a worker has lost."""
        self._failed = 0
        """How many of these are of senders that have failed and cannot continue them."""
        self.failure: SourceFailure | None = None
        """That of the first of them."""
        self.closed = False
        """Whether further senders are rejected: the workers end reception."""

    @property
    def any_samples(self) -> bool:
        """Whether a stream is complete that has samples."""
        return any(self._completed.values())

    @property
    def all_ended(self) -> bool:
        """Whether none is connected or still expected."""
        return not self._active and not self.missing

    @property
    def connected(self) -> Collection[Client]:
        """Those that are connected."""
        return self._active.keys()

    @property
    def missing(self) -> int:
        """How many senders are expected that are not connected."""
        active = set(self._active.values())
        return max(
            self._expected - len(self._completed) - len(active), len(self._again - active), 0
        )

    def counts(self) -> dict[str, int]:
        """Return the numbers of connected, completed and failed senders, as of simulations."""
        return {
            "running": len(self._active),
            "done": len(self._completed) - self._failed,
            "failed": self._failed,
        }

    def named(self, stream: int) -> str | None:
        """Return what messages call a sender that has a name."""
        for name, number in self._streams.items():
            if number == stream:
                return f"sender {name!r}"
        return None

    def handle(self, client: Client, header: Header | None) -> None:
        """Process a message of a sender; raise ``MessageError`` if it is malformed."""
        if header is client.greeting:
            self._connect(client, client.greeting.get("name"))
        elif client not in self._active:
            return
        elif header is None:
            self._fail(client, "it disconnected without an error")
        else:
            match parse_sender_message(header):
                case Finished(samples):
                    number = self._remove(client)
                    self._completed[number] = samples
                    self._again.discard(number)
                case SamplesLost(samples):
                    self._lose(client, samples)
                case SenderFailed(reason):
                    self._fail(client, reason)
                case Progress():  # no limit depends on it
                    pass

    def _connect(self, client: Client, name: object) -> None:
        if not isinstance(name, str | None):
            raise MessageError(f"a name of type {type(name).__name__}; give a string, or null")
        is_awaited = name is not None and self._streams.get(name) in self._again
        if self.closed and not is_awaited:
            client.send({"accepted": False})
            return
        number = self._router.number() if name is None else self._streams.get(name)
        if number is None:
            number = self._router.number()
            self._streams[str(name)] = number
        if number in self._active.values():
            client.send({"error": f"another program sends as {name!r}", "busy": True})
            return
        self._completed.pop(number, None)
        self._active[client] = number
        self._waits_since = None
        self._router.register(client, number)

    def _remove(self, client: Client) -> int:
        self._router.unregister(client)
        self._waits_since = None
        return self._active.pop(client)

    def _fail(self, client: Client, reason: str) -> None:
        number = self._remove(client)
        name = client.greeting.get("name")
        if name is not None:
            warn_user(f"sender {shortened(repr(name))} has failed and may reconnect: {reason}")
            return
        # It cannot continue the same stream.
        self._completed[number] = 0
        self._failed += 1
        last_line = reason.rstrip().splitlines()[-1] if reason.strip() else reason
        failure = SourceFailure(f"a sender has failed: {last_line}", traceback=reason)
        self.failure = self.failure or failure
        warn_user(f"a sender has failed: {reason}")

    # Who is awaited

    def check(self) -> None:
        """Warn at times of senders that are awaited.

        Raises ``SimulationError`` after the timeout.
        """
        if self.closed or not self.missing:
            self._waits_since = None
            return
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since = now
            self._next_notice = FIRST_NOTICE
        seconds = now - self._waits_since
        if seconds > self._timeout:
            raise SimulationError(
                f"senders_timeout={self._timeout:g}: {self._awaited()} has not connected in time; "
                "start it, or give a larger senders_timeout= or fewer senders="
            )
        if seconds > self._next_notice:
            self._next_notice = 2 * seconds
            warn_user(
                f"the fit has waited {seconds:.0f} s for {self._awaited()}, which must connect "
                "before it can end; senders_timeout= limits this"
            )

    def _awaited(self) -> str:
        """Return what messages call the senders that are not connected."""
        ended = set(self._active.values()) | self._completed.keys()
        names = [
            f"sender {shortened(repr(name))}"
            for name, number in self._streams.items()
            if number not in ended
        ]
        unknown = self.missing - len(names)
        if unknown > 0:
            names.append(f"{unknown} of {self._expected} senders")
        return " and ".join(names)

    # What is lost

    def _lose(self, client: Client, samples: int) -> None:
        """Say that a connected sender goes on without samples, as it cannot send them again.

        Raises ``SimulationError`` if a worker has died with them, and the sender has no name.
        """
        name = client.greeting.get("name")
        if name is None and self._router.lost_workers(client):
            raise SimulationError(
                f"a worker has died with {samples} samples of a sender without a name, which "
                f"cannot send them again; {_NAME_IT}"
            )
        sender = "a sender" if name is None else f"sender {shortened(repr(name))}"
        warn_user(f"{sender} goes on without {samples} samples, which are lost")

    def lose_samples(self, worker: Worker) -> None:
        """Expect senders again whose streams were complete, and whose samples a worker has lost.

        Raises ``SimulationError``, with the number of samples, if one of them has no name: its
        program cannot send them again.
        """
        lacking = {
            number: worker.lacks_samples(number, samples)
            for number, samples in self._completed.items()
        }
        lost_streams = {number: samples for number, samples in lacking.items() if samples}
        names = {number: name for name, number in self._streams.items()}
        nameless = [samples for number, samples in lost_streams.items() if number not in names]
        if nameless:
            raise SimulationError(
                f"worker {worker.number} has died with {sum(nameless)} samples of {len(nameless)} "
                f"senders without a name, which have ended and cannot send them again; {_NAME_IT}"
            )
        for number, samples in lost_streams.items():
            del self._completed[number]
            self._again.add(number)
            warn_user(
                f"worker {worker.number} has died with {samples} samples of sender "
                f"{shortened(repr(names[number]))}, which has ended: the fit waits for it under "
                "this name; start it again, and it sends what is missing"
            )

    # What saves have of them

    def state_dict(self, workers: Sequence[Worker]) -> dict[str, Any]:
        """Return the streams of names, and those that are complete in a save.

        Others are expected again, except those without a name: what the save lacks of their samples
        is lost.
        """
        named = set(self._streams.values())
        completed: list[list[int]] = []
        lost_samples = 0
        for number, samples in self._completed.items():
            lacking = sum(worker.lacks_samples(number, samples) for worker in workers)
            if number in named and lacking:
                continue
            completed.append([number, samples])
            lost_samples += lacking
        return {
            "lost": lost_samples,
            "streams": [[name, number] for name, number in self._streams.items()],
            "completed": completed,
            "failed": self._failed,
        }

    def resume(self, saved: dict[str, Any]) -> None:
        """Continue with the streams of a save; warn of names whose streams it has not complete."""
        self._streams = dict(saved["streams"])
        self._completed = dict(saved["completed"])
        self._failed = saved["failed"]
        if saved["lost"]:
            warn_user(
                f"the save lacks {saved['lost']} samples of senders without a name, which have "
                f"ended: these samples are lost; {_NAME_IT}"
            )
        incomplete = [
            repr(name) for name, number in self._streams.items() if number not in self._completed
        ]
        if incomplete:
            warn_user(
                f"the save lacks samples of sender {shortened(', '.join(incomplete))}: the fit "
                "waits for it under this name; start it again if it has ended"
            )

    def stop(self, *, goes_on: bool = False) -> None:
        """Notify active senders that training has ended.

        Those with a name are not, and wait, if the study ``goes_on`` with another fit.
        """
        for client in self._active:
            if not goes_on or client.greeting.get("name") is None:
                client.send({"stop": True})
