"""A parameter server in this process."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from compss_train._utils.validation import check_count, check_integer
from compss_train.data.block import Block
from compss_train.model.optimizers import OptimizerSpec, optimizer_factory
from compss_train.parameter_server.backlog import Backlog, Call
from compss_train.parameter_server.base import ParameterServer, ParameterServerClosedError
from compss_train.parameter_server.entry import Entries, Entry, own_tensor

MAX_BACKLOG = 2**30
"""Bytes of pushes that wait, by default."""


class LocalParameterServer(ParameterServer):
    """Parameters in this process's memory, for any number of threads.

    Parameters
    ----------
    optimizer:
        What a push of gradients does to a key: ``{"optimizer": "sgd", "lr": 0.1}`` and the like, as ``build`` takes
        it; ``None`` adds what is pushed.
    max_backlog:
        The most bytes of pushes that wait to be executed, 1 GiB by default; who pushes more waits, too.

    A thread executes what is called: of one key in order, among keys the highest priority first. What goes wrong in
    an optimizer's step is raised by the next call of the same key.
    """

    def __init__(self, optimizer: OptimizerSpec | None = None, *, max_backlog: int = MAX_BACKLOG) -> None:
        self._entries = Entries(None if optimizer is None else optimizer_factory(optimizer))
        self._failed: dict[str, BaseException] = {}
        self._backlog = Backlog(check_count("max_backlog", max_backlog))
        self._closed = False
        self._thread = threading.Thread(target=_execute, args=[self._backlog], name="parameter-server", daemon=True)
        self._thread.start()
        weakref.finalize(self, self._backlog.close).atexit = False

    def init(self, parameter_id: str, value: Sequence[Block]) -> None:
        """Set what a new key holds."""
        self._check_open()
        self._entries.add(parameter_id, value)

    def push(self, parameter_id: str, grads: Sequence[Block], priority: int = 0) -> None:
        """Have a key updated; returns at once, unless too much is waiting."""
        entry = self._entry(parameter_id)
        entry.check("grads", grads)
        own = [own_tensor(grad) for grad in grads]
        size = sum(tensor.numel() * tensor.element_size() for tensor in own)

        def update() -> None:
            try:
                entry.update(own)
            except BaseException as error:
                self._failed[parameter_id] = error

        self._add(Call(parameter_id, update, size), priority)

    def pull(self, parameter_id: str, weights: Sequence[Block] | None = None, priority: int = 0) -> Sequence[Block]:
        """Wait for what was pushed to the key before, and copy what it then holds."""
        entry = self._entry(parameter_id)
        if weights is not None:
            entry.check("weights", weights)
            self._wait(parameter_id, lambda: entry.copy_into(weights), priority)
            return weights
        copies: list[Block] = []
        self._wait(parameter_id, lambda: copies.extend(entry.copies()), priority)
        return copies

    def close(self) -> None:
        """Execute what waits, and end the thread."""
        self._closed = True
        self._backlog.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _wait(self, key: str, run: Callable[[], Any], priority: int) -> None:
        future: Future[Any] = Future()
        self._add(Call(key, lambda: _fulfil(future, run)), priority)
        error = future.exception()
        self._check_failed(key)
        if error is not None:
            raise error

    def _add(self, call: Call, priority: int) -> None:
        if not self._backlog.add(call, check_integer("priority", priority)):
            raise _closed()

    def _entry(self, key: str) -> Entry:
        self._check_open()
        self._check_failed(key)
        return self._entries[key]

    def _check_failed(self, key: str) -> None:
        if key in self._failed:
            raise RuntimeError(
                f"an update of {key!r} failed, so that it is not what it should be"
            ) from self._failed[key]

    def _check_open(self) -> None:
        if self._closed:
            raise _closed()


def _closed() -> ParameterServerClosedError:
    return ParameterServerClosedError("the parameter server was closed; make another one")


def _fulfil(future: Future[Any], run: Callable[[], Any]) -> None:
    try:
        future.set_result(run())
    except BaseException as error:
        future.set_exception(error)


def _execute(backlog: Backlog) -> None:
    """Execute calls until the backlog is closed and empty; knows nothing of the server, which can be garbage."""
    while (call := backlog.take()) is not None:
        call.run()
        backlog.executed(call)
