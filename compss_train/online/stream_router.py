"""Which streams there are, and where the workers receive their samples."""

from collections.abc import Sequence

from compss_train.net import Client
from compss_train.online.workers import Worker


class StreamRouter:
    """Accepts streams, and tells them the addresses of the workers whenever one of them changes.

    ``key`` is the token that the workers' receivers require.
    """

    def __init__(self, workers: Sequence[Worker], key: str, *, paired: bool) -> None:
        self._workers = workers
        self._key = key
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

    def register(self, client: Client, stream: int) -> None:
        """Accept a stream; it waits for workers that have no address yet."""
        self.update()
        self._deaths[client] = [worker.deaths for worker in self._workers]
        reply = {"stream": stream, "workers": self._urls, "key": self._key, "paired": self._paired}
        client.send({"accepted": True, **reply})

    def unregister(self, client: Client) -> list[Worker]:
        """Remove a stream that has ended; return the workers that died since it was accepted."""
        deaths = self._deaths.pop(client)
        return [
            worker
            for worker, earlier_deaths in zip(self._workers, deaths, strict=True)
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
