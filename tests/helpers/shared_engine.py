"""Processes and local engines that start within a moment, and the engine that tests share."""

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, spawn
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest
from loky import ProcessPoolExecutor

from compss_train import LocalEngine
from compss_train.engines import local
from compss_train.engines.local import worker_process

IMPORTED = ["tests", "compss_train.trainer", "compss_train.worker", "torch._dynamo", "hypothesis", "zmq"]
"""What the process that the others are forked from has imported."""
preparation_data = spawn.get_preparation_data


def begin(heartbeat: str) -> None:
    """Begin as a process of users does, and end with the one that this one was forked from."""
    worker_process.initialize(os.getppid(), [], heartbeat)


def without_main(name: str) -> dict:
    """Return what a process is told; as with loky, it does not import the main script."""
    return {key: told for key, told in preparation_data(name).items() if not key.startswith("init_main")}


class ForkedProcess(worker_process.WorkerProcess):
    """A process that is forked from one that has imported what tasks need: to start it anew takes two seconds."""

    def _new_executor(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("forkserver")
        return ProcessPoolExecutor(1, context=context, initializer=begin, initargs=(self.heartbeat.path,))

    def start(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(spawn, "get_preparation_data", without_main)
            super().start()


def fork_processes(patch: pytest.MonkeyPatch) -> None:
    """Fork the processes of local engines that are made from now on.

    Nothing else differs from what users have; tests of how processes start do without this.
    """
    multiprocessing.set_forkserver_preload(IMPORTED)
    forkserver.ensure_running()  # it stays: tests that count processes do so from now on
    patch.setattr(local, "WorkerProcess", ForkedProcess)


@contextmanager
def other_process(function: Callable[..., None], *args: object) -> Iterator[tuple[BaseProcess, Connection]]:
    """Call ``function(connection, *args)`` in another process, which ends with the block at the latest.

    Yields the process, and the other end of its connection.
    """
    multiprocessing.set_forkserver_preload(IMPORTED)
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=function, args=(theirs, *args))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spawn, "get_preparation_data", without_main)
        process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()


def send_result(connection: Connection, function: Callable[..., object], *args: object) -> None:
    try:
        connection.send((function(*args), None))
    except BaseException:
        connection.send((None, traceback.format_exc()))


def result_of_process(function: Callable[..., object], *args: object) -> object:
    """Return what ``function`` returns in a process without threads of its own, where it may fork."""
    with other_process(send_result, function, *args) as (_, connection):
        result, error = connection.recv()
    assert error is None, error
    return result


class SharedEngine(LocalEngine):
    """An engine that fits which fail cannot end, so that tests share it: only counts how often they want to."""

    ends = 0

    def __init__(self, processes: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            fork_processes(patch)
            super().__init__(processes)

    def shutdown(self, *, kill: bool = False) -> None:
        assert kill, "nobody but a fit that fails is to end it"
        self.ends += 1

    def end(self) -> None:
        super().shutdown(kill=True)
