"""Streams as the coordinator sees them: which workers they send to, and external senders.

``StreamRouter`` gives every stream the workers' addresses. ``ExternalSenders`` are programs outside of the fit.
"""

from collections.abc import Iterator, Sequence

from compss_train._utils.validation import warn_user
from compss_train.net import Client, Header
from compss_train.online.worker_task import OnlineJob
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
    """Waits until the expected number of senders have completed their streams, which ``numbers`` gives numbers."""

    def __init__(self, expected: int, router: StreamRouter, numbers: Iterator[int]) -> None:
        self._expected, self._router, self._numbers = expected, router, numbers
        self._streams: dict[str, int] = {}  # of senders with a name
        self._active: dict[Client, int] = {}
        self._completed: dict[int, int] = {}  # by stream, its number of samples
        self.closed = False
        """Whether further senders are rejected: the workers end reception."""

    @property
    def all_ended(self) -> bool:
        """Whether none is connected or still expected."""
        return len(self._completed) >= self._expected and not self._active

    def handle(self, client: Client, header: Header | None) -> None:
        """Process a message of a sender; a malformed message is answered with an error."""
        try:
            if header is client.greeting:
                self._connect(client, client.greeting.get("name"))
            elif client not in self._active:
                return
            elif header is None:
                self._fail(client, "it disconnected without an error")
            elif "finished" in header:
                self._completed[self._active[client]] = int(header["finished"])
                self._remove(client)
            elif "failed" in header:
                self._fail(client, str(header["failed"]))
        except (ValueError, TypeError, OverflowError) as error:  # JSON has Infinity
            client.send({"error": f"{type(error).__name__}: {error}"})

    def _connect(self, client: Client, name: object) -> None:
        if self.closed:
            client.send({"accepted": False})
            return
        if not isinstance(name, str | None):
            raise TypeError(f"name={name!r}: give a string, or null")
        number = next(self._numbers) if name is None else self._streams.get(name)
        if number is None:
            number = self._streams[str(name)] = next(self._numbers)
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
        number, name = self._remove(client), client.greeting.get("name")
        if name is None:  # it cannot continue the same stream
            self._completed[number] = 0
            warn_user(f"a sender has failed: {reason}")
        else:
            warn_user(f"sender {name!r} has failed and may reconnect: {reason}")

    def warn_lost_samples(self, worker: Worker, job: OnlineJob) -> None:
        """Warn of completed streams whose samples a dead worker had not checkpointed: none sends them again."""
        lost = [number for number, samples in self._completed.items() if worker.lacks_samples(job, number, samples)]
        if lost:
            warn_user(f"worker {worker.number} has died; samples of {len(lost)} senders are lost")

    def stop(self) -> None:
        """Notify all active senders that training has ended."""
        for client in self._active:
            client.send({"stop": True})
