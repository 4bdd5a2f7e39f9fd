"""Processes and local engines that start within a moment, and the engine that tests share."""

import atexit
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import pytest
from loky.backend import resource_tracker

from compss_train import LocalEngine
from compss_train.engines import local
from compss_train.engines.local.starter import LostProcessError, Starter
from compss_train.engines.local.worker_process import serve
from tests.helpers.processes import SHARED

IMPORTED = [
    "tests",
    "compss_train.trainer",
    "compss_train.worker",
    "torch._dynamo",
    "hypothesis",
    "zmq",
]
"""What the process that the others are forked from has imported."""


def begin(connection: Connection, path: str) -> None:
    """Be a worker process, or without a path what ``other_process`` asks for."""
    if path:
        serve(connection, path)
        return
    own = resource_tracker._resource_tracker  # noqa: SLF001 (it has no public name)
    own._fd = None  # noqa: SLF001  # as a program of its own it starts one when it needs it
    connection.send(os.getpid())
    with suppress(EOFError):  # nothing is asked for
        function, args = connection.recv()
        function(connection, *args)


class SharedStarter(Starter):
    """Starts the processes of all engines, as importing what tasks need takes seconds."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._forks = True  # emulated GPUs survive it

    def stop(self) -> None:
        pass


@cache
def shared_starter() -> SharedStarter:
    starter = SharedStarter(begin, 1, IMPORTED)
    atexit.register(Starter.stop, starter)
    with starter.start("") as connection:  # its server is there when tests begin to count processes
        connection.recv()
    return starter


def fork_processes(patch: pytest.MonkeyPatch) -> None:
    """Let local engines that are made from now on share a fork server.

    Nothing else differs from what users have; tests of how processes start do without this.
    """
    starter = shared_starter()
    patch.setattr(local, "Starter", lambda *_: starter)


@contextmanager
def other_process(function: Callable[..., None], *args: object) -> Iterator[tuple[int, Connection]]:
    """Call ``function(connection, *args)`` in another process, which ends with the block at the
    latest.

    Yields the process's id, and the other end of its connection.
    """
    with shared_starter().start("") as connection:
        pid = connection.recv()
        connection.send((function, args))
        try:
            yield pid, connection
        finally:
            shared_starter().send_signal(pid, signal.SIGKILL)
            with suppress(EOFError):  # until the server tells its end
                while not isinstance(connection.recv(), LostProcessError):
                    pass


def send_result(connection: Connection, function: Callable[..., object], *args: object) -> None:
    try:
        connection.send((function(*args), None))
    except BaseException:
        connection.send((None, traceback.format_exc()))


def result_of_process(function: Callable[..., object], *args: object) -> object:
    """Return what ``function`` returns in a process without threads of its own, where it may
    fork.
    """
    with other_process(send_result, function, *args) as (_, connection):
        result, error = connection.recv()
    assert error is None, error
    return result


class SharedEngine(LocalEngine):
    """An engine that tests share: fits that fail leave it to them."""

    def __init__(self, processes: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            fork_processes(patch)
            super().__init__(processes)
        SHARED.add(self)

    def shutdown(self, *, kill: bool = False) -> None:
        raise AssertionError("nobody but its maker is to end it")

    def end(self) -> None:
        super().shutdown(kill=True)
