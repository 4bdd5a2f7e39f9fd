"""Streams as the coordinator sees them: which workers they send to, and external senders.

``StreamRouter`` gives every stream the workers' addresses. ``ExternalSenders`` are programs outside of the fit.
"""

from collections.abc import Callable, Sequence

from compss_train._utils.validation import warn_user
from compss_train.net.connection import Header
from compss_train.online.event_server import Client
from compss_train.online.options import OnlineJob
from compss_train.online.workers import Worker


class StreamRouter:
    """Accepts streams, and gives them the addresses of the workers as often as one of them changes.

    ``key`` is the token that the workers' receivers require.
    """

    def __init__(self, workers: Sequence[Worker], key: str, *, paired: bool) -> None:
        self._workers, self._key, self._paired = workers, key, paired
        self._active: dict[Client, list[int]] = {}  # how often each worker had died when it was accepted
        self._urls: list[str | None] = []

    def register(self, client: Client, stream: int) -> None:
        """Accept a stream; it waits for workers that have no address yet."""
        self.update()
        self._active[client] = [worker.deaths for worker in self._workers]
        reply = {"stream": stream, "workers": self._urls, "key": self._key, "paired": self._paired}
        client.send({"accepted": True, **reply})

    def unregister(self, client: Client) -> list[Worker]:
        """Remove a stream that has ended; return the workers that have died since it was accepted."""
        deaths = self._active.pop(client)
        return [worker for worker, before in zip(self._workers, deaths, strict=True) if worker.deaths != before]

    def update(self) -> None:
        """Send the addresses of the workers to all streams if one has changed; without one a worker has died."""
        before, self._urls = self._urls, [worker.url for worker in self._workers]
        if self._urls != before:
            for client in self._active:
                client.send({"workers": self._urls})


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
