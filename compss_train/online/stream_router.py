"""Reception: tells those who have samples where the workers receive them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from compss_train.online.connection import Header
from compss_train.online.event_server import Client
from compss_train.online.workers import Worker


class Reception:
    """Answers streams once all workers are there, tells them who has died, and who takes a dead one's place.

    ``key`` is what the workers' receivers ask for.
    """

    def __init__(self, workers: Sequence[Worker], key: str, *, paired: bool) -> None:
        self._workers, self._key, self._paired = workers, key, paired
        self._asking: list[tuple[Client, int]] = []
        self._sending: dict[Client, tuple[int, ...]] = {}  # the workers' runs when each was told of them
        self._seeking: list[tuple[Client, int, object]] = []

    def welcome(self, peer: Client, stream: int) -> None:
        """Let samples of a stream come, when all workers are there."""
        self._asking.append((peer, stream))
        self.look()

    def seek(self, peer: Client, header: Header) -> None:
        """Tell a stream that has lost a worker at some place where it is, when that is another one."""
        lost = int(header["lost"])
        if not 0 <= lost < len(self._workers):
            raise ValueError(f"lost={lost}: workers are from 0 to {len(self._workers) - 1}")
        self._seeking.append((peer, lost, header.get("place")))
        self.look()

    def leave(self, peer: Client) -> list[Worker]:
        """Forget a stream that has ended; return the workers that have died while it sent."""
        self._asking = [asking for asking in self._asking if asking[0] is not peer]
        self._seeking = [seeking for seeking in self._seeking if seeking[0] is not peer]
        runs = self._sending.pop(peer, None)
        if runs is None:
            return []
        return [worker for worker, run in zip(self._workers, runs, strict=True) if worker.runs != run]

    def tell_left(self, worker: Worker) -> None:
        """Tell all streams that a worker has died."""
        for peer in self._sending:
            peer.tell({"left": worker.number})

    def look(self) -> None:
        """Answer those who can be answered; called whenever a worker has come."""
        if all(worker.place is not None for worker in self._workers):
            asking, self._asking = self._asking, []
            for peer, stream in asking:
                self._let_send(peer, stream)
        seeking, self._seeking = self._seeking, []
        for peer, number, lost in seeking:
            place = self._workers[number].place
            if place is None or place == lost:
                self._seeking.append((peer, number, lost))
            else:
                peer.tell({"place": place})

    def _let_send(self, peer: Client, stream: int) -> None:
        self._sending[peer] = tuple(worker.runs for worker in self._workers)
        places = [worker.place for worker in self._workers]
        peer.tell({"go": True, "stream": stream, "workers": places, "key": self._key, "paired": self._paired})


def new_key() -> str:
    """Return what nobody can guess."""
    return secrets.token_urlsafe(16)
