"""Reception: tells those who have samples where the workers receive them."""

from __future__ import annotations

from collections.abc import Sequence

from compss_train.online.director import Peer
from compss_train.online.workers import Worker


class Reception:
    """Answers streams once all workers are there, and those that have lost a worker when it has a successor."""

    def __init__(self, workers: Sequence[Worker], *, paired: bool) -> None:
        self._workers = workers
        self._paired = paired
        self._asking: list[tuple[Peer, int]] = []
        self._runs: dict[int, tuple[int, ...]] = {}  # by stream, the workers' runs that it was told of
        self._seeking: list[tuple[Peer, int]] = []

    def welcome(self, peer: Peer, stream: int) -> None:
        """Let samples of a stream come, when all workers are there."""
        self._asking.append((peer, stream))
        self.look()

    def seek(self, peer: Peer, worker: int) -> None:
        """Tell a stream where a worker is, when there is one."""
        self._seeking.append((peer, worker))
        self.look()

    def died_since(self, stream: int) -> list[Worker]:
        """Return the workers that have died since a stream was told of them; it ends with this."""
        runs = self._runs.pop(stream, None)
        if runs is None:
            return []
        return [worker for worker, run in zip(self._workers, runs, strict=True) if worker.runs != run]

    def look(self) -> None:
        """Answer those who can be answered; called whenever a worker has come."""
        if all(worker.place is not None for worker in self._workers):
            places = [worker.place for worker in self._workers]
            for peer, stream in self._asking:
                self._runs[stream] = tuple(worker.runs for worker in self._workers)
                peer.tell({"go": True, "stream": stream, "workers": places, "paired": self._paired})
            self._asking = []
        seeking, self._seeking = self._seeking, []
        for peer, number in seeking:
            if (place := self._workers[number].place) is None:
                self._seeking.append((peer, number))
            else:
                peer.tell({"place": place})
