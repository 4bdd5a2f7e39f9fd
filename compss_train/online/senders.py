"""The senders of an online fit: programs that are no tasks of it, but send it samples."""

from __future__ import annotations

from collections.abc import Callable

from compss_train._utils.validation import warn_user
from compss_train.online.connection import Header
from compss_train.online.event_server import Client
from compss_train.online.job import OnlineJob
from compss_train.online.stream_router import Reception
from compss_train.online.workers import Worker


class Senders:
    """Waits for as many as were announced to have sent all."""

    def __init__(self, expected: int, reception: Reception, new_number: Callable[[], int]) -> None:
        self._expected, self._reception, self._new_number = expected, reception, new_number
        self._streams: dict[str, int] = {}  # of those that have a name
        self._sending: dict[Client, int] = {}
        self._ended: dict[int, int] = {}  # how many samples each had that has ended
        self._told_over = False

    @property
    def all_ended(self) -> bool:
        """Whether nobody sends, or is still to come."""
        return len(self._ended) >= self._expected and not self._sending

    def shut_out(self) -> None:
        """Take in no more of them: the buffers have been told that nothing will come."""
        self._told_over = True

    def handle(self, peer: Client, header: Header | None) -> None:
        """Take what one of them says."""
        if header is not None and "hello" in header:
            self._welcome(peer)
        elif peer not in self._sending:
            return
        elif header is None:
            self._leave(peer, "it is gone without a word")
        elif "lost" in header:
            self._reception.seek(peer, header)
        elif "finished" in header:
            self._ended[self._sending.pop(peer)] = int(header["finished"])
            self._reception.leave(peer)
        elif "failed" in header:
            self._leave(peer, str(header["failed"]))

    def _welcome(self, peer: Client) -> None:
        if self._told_over or not isinstance(peer.name, str | None):
            peer.tell({"go": False} if self._told_over else {"error": f"name {peer.name!r} is no string"})
            return
        number = self._streams[peer.name] if peer.name in self._streams else self._new_number()
        if peer.name is not None:
            self._streams[peer.name] = number
        if number in self._sending.values():
            peer.tell({"error": f"another program sends as {peer.name!r}", "busy": True})
            return
        self._ended.pop(number, None)
        self._sending[peer] = number
        self._reception.welcome(peer, number)

    def _leave(self, peer: Client, reason: str) -> None:
        number = self._sending.pop(peer)
        self._reception.leave(peer)
        if peer.name is None:  # it cannot come back as the same one
            self._ended[number] = 0
            warn_user(f"a sender has failed: {reason}")
        else:
            warn_user(f"sender {peer.name!r} has failed, and is waited for: {reason}")

    def tell_lost(self, died: Worker, job: OnlineJob) -> None:
        """Warn of what died with a worker, and nobody will send again."""
        lost = [number for number, samples in self._ended.items() if died.lacks(job, number, samples)]
        if lost:
            warn_user(f"worker {died.number} has died, and with it samples of {len(lost)} senders")

    def stop(self) -> None:
        """Tell those that still send that no more is wanted."""
        for peer in self._sending:
            peer.tell({"stop": True})
