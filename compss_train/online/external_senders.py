"""Other programs that send samples, as the coordinator sees them."""

from collections.abc import Sequence
from typing import Any

from compss_train._utils.validation import warn_user
from compss_train.net import Client, Header, MessageError, shortened
from compss_train.online.source_failures import SourceFailure
from compss_train.online.source_messages import Finished, SenderFailed, parse_sender_message
from compss_train.online.stream_router import StreamRouter
from compss_train.online.workers import Worker


class ExternalSenders:
    """Waits until the expected number of senders have completed their streams."""

    def __init__(self, expected: int, router: StreamRouter) -> None:
        self._expected = expected
        self._router = router
        self._streams: dict[str, int] = {}
        """The streams of senders that have a name."""
        self._active: dict[Client, int] = {}
        """The streams of those that are connected."""
        self._completed: dict[int, int] = {}
        """By stream, its number of samples once it is complete."""
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
        return len(self._completed) >= self._expected and not self._active

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
                    self._completed[self._active[client]] = samples
                    self._remove(client)
                case SenderFailed(reason):
                    self._fail(client, reason)

    def _connect(self, client: Client, name: object) -> None:
        if self.closed:
            client.send({"accepted": False})
            return
        if not isinstance(name, str | None):
            raise MessageError(f"a name of type {type(name).__name__}; give a string, or null")
        number = self._router.number() if name is None else self._streams.get(name)
        if number is None:
            number = self._router.number()
            self._streams[str(name)] = number
        if number in self._active.values():
            client.send({"error": f"another program sends as {name!r}", "busy": True})
            return
        self._completed.pop(number, None)
        self._active[client] = number
        self._router.register(client, number)

    def _remove(self, client: Client) -> int:
        self._router.unregister(client)
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

    def state_dict(self, workers: Sequence[Worker]) -> dict[str, Any]:
        """Return the streams of names, and those that are complete in a save.

        Others are expected again.
        """
        named = set(self._streams.values())
        completed = []
        for number, samples in self._completed.items():
            lacks = any(worker.lacks_samples(number, samples) for worker in workers)
            if number not in named or not lacks:
                completed.append([number, samples])
        return {
            "streams": [[name, number] for name, number in self._streams.items()],
            "completed": completed,
            "failed": self._failed,
        }

    def resume(self, saved: dict[str, Any]) -> None:
        """Continue with the streams of a save; warn of names whose streams it has not complete."""
        self._streams = dict(saved["streams"])
        self._completed = dict(saved["completed"])
        self._failed = saved["failed"]
        incomplete = [
            repr(name) for name, number in self._streams.items() if number not in self._completed
        ]
        if incomplete:
            warn_user(
                f"the save lacks samples of sender {shortened(', '.join(incomplete))}: the fit "
                "waits for it under this name; start it again if it has ended"
            )

    def warn_lost_samples(self, worker: Worker) -> None:
        """Warn of samples of completed streams that a dead worker had: nobody sends them again."""
        lacking = [
            worker.lacks_samples(number, samples) for number, samples in self._completed.items()
        ]
        senders = sum(samples > 0 for samples in lacking)
        if senders:
            warn_user(
                f"worker {worker.number} has died; {sum(lacking)} samples of {senders} "
                "senders are lost"
            )

    def stop(self, *, goes_on: bool = False) -> None:
        """Notify active senders that training has ended.

        Those with a name are not, and wait, if the study ``goes_on`` with another fit.
        """
        for client in self._active:
            if not goes_on or client.greeting.get("name") is None:
                client.send({"stop": True})
