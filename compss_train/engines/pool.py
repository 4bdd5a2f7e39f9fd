"""The local engine's worker processes: lanes side by side, which may become more."""

from __future__ import annotations

from collections.abc import Sequence

from compss_train.engines.lane import Lane


class Pool:
    """Lanes of ``threads`` intra-op threads each, none at first: its end can be seen to before any has started."""

    def __init__(self, threads: int, folders: Sequence[str]) -> None:
        self.lanes: list[Lane] = []
        self._threads = threads
        self._folders = folders

    def add(self, count: int) -> list[Lane]:
        """Return new lanes, whose processes start side by side."""
        lanes = [Lane(self._threads, self._folders) for _ in range(count)]
        self.lanes += lanes
        for lane in lanes:
            lane.start()
        return lanes

    def close(self) -> None:
        """End all processes, and only then wait for them."""
        for lane in self.lanes:
            lane.stop()
        for lane in self.lanes:
            lane.join()
