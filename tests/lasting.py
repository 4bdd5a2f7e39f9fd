"""The local engine that tests share."""

import multiprocessing
import os
import signal
import threading

import pytest
from loky import ProcessPoolExecutor

from compss_train import LocalEngine
from compss_train.engines import lane, local, pool, remote

IMPORTED = ["pytest", "compss_train.metrics", "compss_train.worker", "torch._dynamo"]
"""What the process that the others are forked from has imported; without pytest each would import it again."""


def begin() -> None:
    """Ignore Ctrl-C, and end with the process that this one was forked from, as ``remote.start`` does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=remote._end_with, args=(os.getppid(),), daemon=True).start()


class ForkedLane(lane.Lane):
    """A process that is forked from one that has imported what tasks need: to start it anew takes two seconds."""

    def _new_executor(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, context=multiprocessing.get_context("forkserver"), initializer=begin)


class ForkedPool(pool.Pool):
    """Has lanes that start within a moment."""

    def add(self, count: int) -> list[lane.Lane]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pool, "Lane", ForkedLane)
            return super().add(count)


class Lasting(LocalEngine):
    """An engine that fits which fail cannot end, so that tests share it: only counts how often they want to.

    It differs from what users have in how its processes start, nothing else: tests of that have their own engines.
    """

    ends = 0

    def __init__(self, processes: int) -> None:
        multiprocessing.set_forkserver_preload(IMPORTED)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local, "Pool", ForkedPool)
            super().__init__(processes)

    def shutdown(self, *, kill: bool = False) -> None:
        assert kill, "nobody but a fit that fails is to end it"
        self.ends += 1

    def end(self) -> None:
        super().shutdown(kill=True)
