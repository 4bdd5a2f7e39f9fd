"""Which streams there are, and where the workers receive their samples."""

from collections.abc import Sequence

from compss_train.net import Client
from compss_train.online.routing import StreamKeys
from compss_train.online.workers import Worker


class StreamRouter:
    """Accepts streams, and tells them the addresses of the workers whenever one of them changes.

    Each gets the ``keys`` of its number only.
    """

    def __init__(self, workers: Sequence[Worker], keys: StreamKeys, *, paired: bool) -> None:
        self._workers = workers
        self._keys = keys
        self._paired = paired
        self.next_number = 0
        """The number of the next sender's stream.

        Streams of simulations have the numbers of these, which are below.
        """
        self._deaths: dict[Client, list[int]] = {}
        """By stream, how often each worker had died when it was accepted."""
        self._urls: list[str | None] = []
        """The addresses of the workers that streams know."""

    def number(self) -> int:
        """Return the number of a new sender's stream."""
        self.next_number += 1
        return self.next_number - 1

    def register(self, client: Client, stream: int, *, progress: float | None = None) -> None:
        """Accept a stream; it waits for workers that have no address yet.

        It is to say every ``progress`` seconds that it makes progress, unless that is ``None``.
        """
        self.update()
        self._deaths[client] = [worker.deaths for worker in self._workers]
        reply = {
            "accepted": True,
            "stream": stream,
            "stream_key": self._keys.of(stream),
            "key": self._keys.token,
            "workers": self._urls,
            "paired": self._paired,
        }
        if progress is not None:
            reply["progress"] = progress
        client.send(reply)

    def unregister(self, client: Client) -> list[Worker]:
        """Remove a stream that has ended; return the workers that died since it was accepted."""
        lost_workers = self.lost_workers(client)
        del self._deaths[client]
        return lost_workers

    def lost_workers(self, client: Client) -> list[Worker]:
        """Return the workers that have died since a stream was accepted."""
        return [
            worker
            for worker, earlier_deaths in zip(self._workers, self._deaths[client], strict=True)
            if worker.deaths != earlier_deaths
        ]

    def update(self) -> None:
        """Send the addresses of the workers to all streams if one has changed.

        A worker without an address has died.
        """
        known_urls = self._urls
        self._urls = [worker.url for worker in self._workers]
        if self._urls != known_urls:
            for client in self._deaths:
                client.send({"workers": self._urls})
