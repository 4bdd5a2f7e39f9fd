"""Streams as the coordinator sees them: which workers they send to, and external senders.

``StreamRouter`` gives every stream the workers' endpoints, and a replacement for a lost one. ``ExternalSenders``
are programs that are not tasks of the fit.
"""

from collections.abc import Callable, Sequence

from compss_train._utils.validation import warn_user
from compss_train.online.connection import Header
from compss_train.online.event_server import Client
from compss_train.online.options import OnlineJob
from compss_train.online.workers import Worker


class StreamRouter:
    """Accepts streams once all workers have endpoints; announces lost workers and their replacements.

    ``key`` is the token that the workers' receivers require.
    """

    def __init__(self, workers: Sequence[Worker], key: str, *, paired: bool) -> None:
        self._workers, self._key, self._paired = workers, key, paired
        self._waiting: list[tuple[Client, int]] = []
        self._active: dict[Client, tuple[int, ...]] = {}  # the workers' attempts when each was accepted
        self._replacement_requests: list[tuple[Client, int, object]] = []

    def register(self, client: Client, stream: int) -> None:
        """Accept a stream when all workers have endpoints."""
        self._waiting.append((client, stream))
        self.update()

    def request_replacement(self, client: Client, header: Header) -> None:
        """Reply to a stream that lost a worker when that worker has another endpoint."""
        lost = int(header["lost"])
        if not 0 <= lost < len(self._workers):
            raise ValueError(f"lost={lost}: workers are numbered 0 to {len(self._workers) - 1}")
        self._replacement_requests.append((client, lost, header.get("endpoint")))
        self.update()

    def unregister(self, client: Client) -> list[Worker]:
        """Remove a stream that has ended; return the workers that have died since it was accepted."""
        self._waiting = [waiting for waiting in self._waiting if waiting[0] is not client]
        self._replacement_requests = [each for each in self._replacement_requests if each[0] is not client]
        accepted = self._active.pop(client, None)
        if accepted is None:
            return []
        return [w for w, attempts in zip(self._workers, accepted, strict=True) if w.attempts != attempts]

    def announce_lost(self, worker: Worker) -> None:
        """Notify all active streams that a worker has died."""
        for client in self._active:
            client.send({"worker_lost": worker.number})

    def update(self) -> None:
        """Reply to pending requests where possible; called whenever an endpoint may have changed."""
        if all(worker.endpoint is not None for worker in self._workers):
            waiting, self._waiting = self._waiting, []
            for client, stream in waiting:
                self._accept(client, stream)
        requests, self._replacement_requests = self._replacement_requests, []
        for client, number, lost in requests:
            endpoint = self._workers[number].endpoint
            if endpoint is None or endpoint == lost:
                self._replacement_requests.append((client, number, lost))
            else:
                client.send({"endpoint": endpoint})

    def _accept(self, client: Client, stream: int) -> None:
        self._active[client] = tuple(worker.attempts for worker in self._workers)
        endpoints = [worker.endpoint for worker in self._workers]
        reply = {"stream": stream, "workers": endpoints, "key": client.hide(self._key), "paired": self._paired}
        client.send({"accepted": True, **reply})


class ExternalSenders:
    """Waits until the expected number of senders have completed their streams."""

    def __init__(self, expected: int, router: StreamRouter, new_number: Callable[[], int]) -> None:
        self._expected, self._router, self._new_number = expected, router, new_number
        self._streams: dict[str, int] = {}  # of senders with a name
        self._active: dict[Client, int] = {}
        self._completed: dict[int, int] = {}  # by stream, its number of samples
        self._closed = False

    @property
    def all_ended(self) -> bool:
        """Whether none is connected or still expected."""
        return len(self._completed) >= self._expected and not self._active

    def close_registration(self) -> None:
        """Reject further senders: the workers end reception."""
        self._closed = True

    def handle(self, client: Client, header: Header | None) -> None:
        """Process an event of a sender."""
        if header is not None and "role" in header:
            self._connect(client)
        elif client not in self._active:
            return
        elif header is None:
            self._fail(client, "it disconnected without an error")
        elif "lost" in header:
            self._router.request_replacement(client, header)
        elif "finished" in header:
            self._completed[self._active.pop(client)] = int(header["finished"])
            self._router.unregister(client)
        elif "failed" in header:
            self._fail(client, str(header["failed"]))

    def _connect(self, client: Client) -> None:
        if self._closed:
            client.send({"accepted": False})
            return
        if not isinstance(client.name, str | None):
            client.send({"error": f"name={client.name!r}: give a string, or null"})
            return
        number = self._streams[client.name] if client.name in self._streams else self._new_number()
        if client.name is not None:
            self._streams[client.name] = number
        if number in self._active.values():
            client.send({"error": f"another program sends as {client.name!r}", "busy": True})
            return
        self._completed.pop(number, None)
        self._active[client] = number
        self._router.register(client, number)

    def _fail(self, client: Client, reason: str) -> None:
        number = self._active.pop(client)
        self._router.unregister(client)
        if client.name is None:  # it cannot continue the same stream
            self._completed[number] = 0
            warn_user(f"a sender has failed: {reason}")
        else:
            warn_user(f"sender {client.name!r} has failed and may reconnect: {reason}")

    def warn_lost_samples(self, worker: Worker, job: OnlineJob) -> None:
        """Warn of completed streams whose samples a dead worker had not checkpointed: none sends them again."""
        lost = [number for number, samples in self._completed.items() if worker.lacks_samples(job, number, samples)]
        if lost:
            warn_user(f"worker {worker.number} has died; samples of {len(lost)} senders are lost")

    def stop(self) -> None:
        """Notify all active senders that training has ended."""
        for client in self._active:
            client.send({"stop": True})
