"""Reading ahead: loading, decoding and transforms run in threads while the model trains.

``ReadAhead`` applies a function to items in threads, a few items ahead of the consumer. ``batches_through`` passes
loaded samples through a buffer.
"""

import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Generic, Self, TypeAlias, TypeVar

from compss_train._utils.validation import check_count
from compss_train.buffers.base import Buffer
from compss_train.exceptions import BufferDrainedError

Item = TypeVar("Item")
Result = TypeVar("Result")

_Tasks: TypeAlias = "queue.SimpleQueue[tuple[Future[Result], Item] | None]"
"""The threads' work; ``None`` follows the last item."""

_POLL_SECONDS = 0.02  # how often a thread that waits for samples checks whether any will come
_JOIN_SECONDS = 1.0  # how long closing waits for threads that are loading


class ReadAhead(Iterator[Result], Generic[Result]):
    """Iterates over ``load(item)`` for every item, computed in threads ahead of time.

    Parameters
    ----------
    items:
        The items to load; iterated over in the thread of the consumer, at most ``depth`` items ahead.
    load:
        Called in the threads. Reading, and most of numpy and torch, runs in parallel with the training; Python code
        takes turns with it, because of the global interpreter lock.
    threads:
        Number of items that are loaded at the same time, 1 by default.
    depth:
        Maximum number of results that are loaded or being loaded but not yet consumed; two per thread by default.
    ordered:
        Return results in the order of the items (default), or as soon as they are ready.

    The threads start at once. An exception in ``items`` or ``load`` is raised in place of its result and ends the
    iteration. ``close()``, a ``with`` block and garbage collection stop the threads: waiting ones at once, loading
    ones when ``load`` returns, for which ``close`` waits up to a second. ``close`` then closes ``items`` if it is a
    generator or another ``ReadAhead``, the stage before in a pipeline.
    """

    def __init__(
        self,
        items: Iterable[Item],
        load: Callable[[Item], Result],
        *,
        threads: int = 1,
        depth: int | None = None,
        ordered: bool = True,
    ) -> None:
        check_count("threads", threads)
        depth = check_count("depth", 2 * threads if depth is None else depth)
        if depth < threads:
            raise ValueError(
                f"depth={depth}, threads={threads}: each thread loads a result; give a depth of at least {threads}"
            )
        self._items, self._depth, self._ordered = iter(items), depth, ordered
        self._tasks: _Tasks[Result, Any] = queue.SimpleQueue()
        self._ahead: list[Future[Result]] = []
        self._exhausted = False
        # The threads refer to their tasks only, not to this object.
        self._stop = weakref.finalize(self, _cancel, self._ahead, self._tasks)
        for number in range(threads):  # not a pool's threads, for which Python would wait at its exit
            args = self._tasks, load
            threading.Thread(target=_work, args=args, name=f"read-ahead-{number}", daemon=True).start()
        self._start_loading()

    def _start_loading(self) -> None:
        while not self._exhausted and len(self._ahead) < self._depth:
            future: Future[Result] = Future()
            try:
                self._tasks.put((future, next(self._items)))
            except BaseException as error:
                self._exhausted = True
                self._tasks.put(None)
                if isinstance(error, StopIteration):
                    break
                if not isinstance(error, Exception):  # Ctrl-C, which must not wait for the results before it
                    raise
                future.set_exception(error)
            self._ahead.append(future)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Result:
        if not self._ahead:
            raise StopIteration
        done = set(self._ahead[:1]) if self._ordered else wait(self._ahead, return_when=FIRST_COMPLETED).done
        future = next(each for each in self._ahead if each in done)
        if isinstance(error := future.exception(), StopIteration):  # would end the iteration silently
            self.close()
            raise RuntimeError("load raised StopIteration") from error
        if error is not None:
            self.close()
            raise error
        self._ahead.remove(future)
        self._start_loading()
        return future.result()

    @property
    def ready(self) -> bool:
        """Whether the next result is available without waiting."""
        return any(each.done() for each in (self._ahead[:1] if self._ordered else self._ahead))

    def close(self) -> None:
        """Stop the threads and end the iteration."""
        self._stop()
        wait([each for each in self._ahead if not each.cancelled()], timeout=_JOIN_SECONDS)
        self._ahead, self._exhausted = [], True
        if hasattr(self._items, "close"):
            self._items.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _work(tasks: "_Tasks[Result, Item]", load: Callable[[Item], Result]) -> None:
    """Load items until there are no more, and let the other threads know."""
    while (task := tasks.get()) is not None:
        future, item = task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(load(item))
            except BaseException as error:
                future.set_exception(error)
        del task, future, item  # nothing is kept while the thread waits
    tasks.put(None)


def _cancel(ahead: list[Future[Any]], tasks: "_Tasks[Any, Any]") -> None:
    for future in ahead:
        future.cancel()
    tasks.put(None)


def batches_through(
    buffer: Buffer, chunks: Iterable[Any], batch_size: int, *, least: int | None = None
) -> Iterator[Any]:
    """Iterate over batches from a buffer that a thread fills with chunks (arguments of ``put_many``).

    Ends when all chunks have been put and the buffer is empty; with ``least``, when all chunks have been put and
    ``least`` batches were drawn, or no other batch is available. Reception does not end then, so that the remaining
    samples can be drawn later. An exception in ``chunks`` is raised in place of the next batch. Leaving the
    iteration early stops the thread.
    """
    errors: list[BaseException] = []

    def fill() -> None:
        try:
            for chunk in chunks:
                buffer.put_many(chunk)
        except BaseException as error:
            errors.append(error)
        finally:
            if least is None:
                buffer.signal_reception_over()

    thread = threading.Thread(target=fill, name="fill-buffer", daemon=True)
    thread.start()
    drawn = 0
    try:
        while (running := thread.is_alive()) or least is None or drawn < least:
            try:
                batch = buffer.get_batch(batch_size, timeout=None if least is None else _POLL_SECONDS)
            except BufferDrainedError:
                break
            except queue.Empty:
                if not running:
                    break
                continue
            if errors:
                break
            drawn += 1
            yield batch
        if errors:
            raise errors[0]
    finally:
        if thread.is_alive():  # it may wait for room
            buffer.signal_reception_over()
        if thread is not threading.current_thread():  # when garbage is collected in it
            thread.join(_JOIN_SECONDS)
        if isinstance(chunks, ReadAhead):
            chunks.close()
