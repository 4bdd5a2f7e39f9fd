"""A parameter server for the threads of this process."""

import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from compss_train._utils.validation import check_count, check_integer
from compss_train.data.block import Block
from compss_train.exceptions import ParameterServerClosedError
from compss_train.model.optimizers import OptimizerSpec, optimizer_factory
from compss_train.net.call_queue import Call, CallQueue
from compss_train.parameter_server.base import ParameterServer, without_replicas
from compss_train.parameter_server.store import Entry, ParameterStore, cpu_copy

MAX_BACKLOG = 2**30
"""Default maximum of the bytes of waiting pushes."""


class LocalParameterServer(ParameterServer):
    """Hold parameters in this process's memory, for any number of threads.

    Parameters
    ----------
    optimizer:
        The optimizer that updates a key with pushed gradients, as for ``build``: ``{"optimizer": "sgd",
        "lr": 0.1}``, for example. ``None``, the default, adds pushed arrays.
    max_backlog:
        The maximum number of bytes of pushes that wait to be executed, 1 GiB by default; further pushes block.

    A thread executes the calls: those of one key in order, among keys the highest priority first. An exception in
    an optimizer's step is raised by the next call of the same key.
    """

    def __init__(self, optimizer: OptimizerSpec | None = None, *, max_backlog: int = MAX_BACKLOG) -> None:
        self._store = ParameterStore(None if optimizer is None else optimizer_factory(optimizer))
        self._failed: dict[str, BaseException] = {}
        self._queue = CallQueue(check_count("max_backlog", max_backlog))
        self._closed = False
        self._thread = threading.Thread(target=_execute, args=[self._queue], name="parameter-server", daemon=True)
        self._thread.start()
        weakref.finalize(self, self._queue.close).atexit = False

    def init(
        self,
        parameter_id: str,
        value: Sequence[Block],
        *,
        optimized: bool = True,
        replicas: bool | None = None,
    ) -> None:
        """Set the arrays of a new key."""
        self._check_open()
        own, number = without_replicas(parameter_id, value, replicas)
        self._store.add(parameter_id, own, optimized, number)

    def push(self, parameter_id: str, grads: Sequence[Block], priority: int = 0) -> None:
        """Update a key in the background; blocks while too many bytes are waiting."""
        entry = self._entry(parameter_id)
        entry.check("grads", grads)
        own = [cpu_copy(grad) for grad in grads]
        size = sum(tensor.numel() * tensor.element_size() for tensor in own)

        def update() -> None:
            try:
                entry.update(own)
            except BaseException as error:
                self._failed[parameter_id] = error

        self._add(Call(parameter_id, update, size), priority)

    def pull(self, parameter_id: str, weights: Sequence[Block] | None = None, priority: int = 0) -> Sequence[Block]:
        """Wait for earlier pushes of the key, and copy its arrays."""
        entry = self._entry(parameter_id)
        if weights is not None:
            entry.check("weights", weights)
            self._wait(parameter_id, lambda: entry.copy_into(weights), priority)
            return weights
        copies: list[Block] = []
        self._wait(parameter_id, lambda: copies.extend(entry.copies()), priority)
        return copies

    def close(self) -> None:
        """Execute waiting calls, and end the thread."""
        self._closed = True
        self._queue.close()
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
        if not self._queue.add(call, check_integer("priority", priority)):
            raise _closed()

    def _entry(self, key: str) -> Entry:
        self._check_open()
        self._check_failed(key)
        return self._store[key]

    def _check_failed(self, key: str) -> None:
        if key in self._failed:
            raise RuntimeError(f"an update of {key!r} failed, so that its arrays are not valid") from self._failed[
                key
            ]

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


def _execute(queue: CallQueue) -> None:
    """Execute calls until the queue is closed and empty; holds no reference to the server."""
    while (call := queue.take()) is not None:
        call.run()
        queue.executed(call)
