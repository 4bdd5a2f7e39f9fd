"""A parameter server for the threads of this process."""

import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future

from compss_train._utils.validation import check_count
from compss_train.data.block import Block
from compss_train.exceptions import ParameterServerClosedError
from compss_train.model.optimizers import OptimizerSpec, optimizer_factory
from compss_train.net.call_queue import Call, CallQueue
from compss_train.parameter_server.base import ArraySpecs, ParameterServer
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

    def _init(self, key: str, value: Sequence[Block], optimized: bool, replicas: int) -> None:
        self._check_open()
        self._store.add(key, value, optimized, replicas)

    def _push(self, key: str, grads: Sequence[Block], priority: int) -> None:
        entry, own = self._entry(key), [cpu_copy(grad) for grad in grads]

        def update() -> None:
            try:
                entry.update(own)
            except BaseException as error:
                self._failed[key] = error

        self._add(Call(key, update, sum(tensor.nbytes for tensor in own)), priority)

    def _pull(self, key: str, weights: Sequence[Block] | None, priority: int) -> Sequence[Block]:
        entry, future = self._entry(key), Future[Sequence[Block]]()

        def read() -> None:
            try:
                future.set_result(entry.copies() if weights is None else entry.copy_into(weights))
            except BaseException as error:
                future.set_exception(error)

        self._add(Call(key, read), priority)
        error = future.exception()
        self._check_failed(key)
        if error is not None:
            raise error
        return future.result()

    def _specs(self, key: str) -> ArraySpecs:
        return self._entry(key).specs

    def close(self) -> None:
        """Execute waiting calls, and end the thread."""
        self._closed = True
        self._queue.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _add(self, call: Call, priority: int) -> None:
        if not self._queue.add(call, priority):
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


def _execute(queue: CallQueue) -> None:
    """Execute calls until the queue is closed and empty; holds no reference to the server."""
    while (call := queue.take()) is not None:
        call.run()
        queue.executed(call)
