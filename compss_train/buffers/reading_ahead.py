"""Reading ahead: loading, decoding and transforms run in threads while the model trains.

``ReadAhead`` applies a function to items in threads, a few items ahead of the consumer; nested,
they form a pipeline of stages. ``batches_through`` passes loaded samples through a buffer.
"""

import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Self, TypeVar

from compss_train._utils.validation import check_count
from compss_train.buffers.base import Buffer
from compss_train.exceptions import BufferDrainedError

Item = TypeVar("Item")
Loaded = TypeVar("Loaded")

_POLL_SECONDS = 0.02  # how often a thread that waits for samples checks whether any will come
_JOIN_SECONDS = 1.0  # how long closing waits for threads that are loading


class ReadAhead(Iterator[Loaded], Generic[Loaded]):
    """Iterates over ``load(item)`` for every item, computed in threads ahead of time.

    Parameters
    ----------
    items:
        The items to load; iterated over in the threads, one at a time, and at most ``depth`` items
        ahead.
    load:
        Called in the threads. Reading and most numpy and torch operations run in parallel with the
        training; Python code takes turns with it, because of the global interpreter lock.
    threads:
        Number of items that are loaded at the same time, 1 by default.
    depth:
        Maximum number of results that are loaded or being loaded and not yet consumed; two per
        thread by default.

    The threads start at once. An exception in ``items`` or ``load`` is raised in place of its
    result and ends the iteration. ``close()``, a ``with`` block and garbage collection stop the
    threads: waiting ones at once, loading ones when ``load`` returns, for which ``close`` waits up
    to a second. Then ``items`` is closed if it is a generator. If ``items`` is another
    ``ReadAhead``, that is stopped at once.
    """

    def __init__(
        self,
        items: Iterable[Item],
        load: Callable[[Item], Loaded],
        *,
        threads: int = 1,
        depth: int | None = None,
    ) -> None:
        check_count("threads", threads)
        depth = check_count("depth", 2 * threads if depth is None else depth)
        if depth < threads:
            raise ValueError(
                f"depth={depth}, threads={threads}: each thread loads a result; give a depth of "
                f"at least {threads}"
            )
        self._queue: _LoadQueue[Any, Loaded] = _LoadQueue(items, load, depth)
        self._threads = [
            threading.Thread(target=self._queue.run, name=f"read-ahead-{number}", daemon=True)
            for number in range(threads)
        ]
        # The threads refer to the queue only, not to this object.
        weakref.finalize(self, self._queue.stop)
        for thread in self._threads:
            thread.start()

    def __next__(self) -> Loaded:
        return self._queue.take()

    @property
    def ready(self) -> bool:
        """Whether the next result is available without waiting."""
        return self._queue.is_ready()

    def stop(self) -> None:
        """End the iteration, and let the threads end without waiting for them."""
        self._queue.stop()

    def close(self) -> None:
        """Stop the threads and end the iteration."""
        self.stop()
        until = time.monotonic() + _JOIN_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            self._queue.close_items()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _LoadQueue(Generic[Item, Loaded]):
    """The state that threads and consumer share: items to load, and results by number."""

    def __init__(self, items: Iterable[Item], load: Callable[[Item], Loaded], depth: int) -> None:
        self._source = items
        self._items = iter(items)
        self._load = load
        self._depth = depth
        self._item_lock = threading.Lock()  # held by the thread that takes the next item
        self._changed = threading.Condition()
        self._results: dict[int, tuple[Loaded | None, BaseException | None]] = {}
        """Results or errors by number; the last error ends the items: usually ``StopIteration``."""
        self._started = 0
        """Number of items that threads have taken."""
        self._taken = 0
        """Number of results that the consumer has taken."""
        self._exhausted = False
        """Whether there are no more items."""
        self._stopped = False
        """Whether results are dropped."""

    def run(self) -> None:
        """Load items until they are exhausted or the queue is stopped."""
        while (numbered_item := self._next_item()) is not None:
            number, item = numbered_item
            result: Loaded | None = None
            raised: BaseException | None = None
            try:
                result = self._load(item)
            except StopIteration as error:  # would end the iteration silently
                raised = RuntimeError("load raised StopIteration")
                raised.__cause__ = error
            except BaseException as error:
                raised = error
            self._deliver(number, result, raised)
            # Nothing is kept while the thread waits.
            result = None
            raised = None

    def _next_item(self) -> tuple[int, Item] | None:
        """Return the number and the next item as soon as there is room for its result."""
        with self._item_lock:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._exhausted or self._started - self._taken < self._depth
                )
                if self._exhausted:
                    return None
                number = self._started
            try:
                item = next(self._items)
            except BaseException as error:
                self._exhausted = True
                self._deliver(number, None, error)
                return None
            with self._changed:
                self._started += 1
            return number, item

    def _deliver(self, number: int, result: Loaded | None, error: BaseException | None) -> None:
        """Add a result, or its error."""
        with self._changed:
            if not self._stopped:
                self._results[number] = result, error
            self._changed.notify_all()

    def take(self) -> Loaded:
        """Wait for the next result and return it, or raise its exception.

        Raises ``StopIteration`` after the last one.
        """
        with self._changed:
            self._changed.wait_for(self.is_ready)
            if self._stopped:
                raise StopIteration
            result, error = self._results.pop(self._taken)
            self._taken += 1
            self._changed.notify_all()
        if error is not None:
            self.stop()
            raise error
        return result  # type: ignore[return-value]

    def is_ready(self) -> bool:
        """Return whether ``take`` would return or raise without waiting."""
        with self._changed:
            return self._stopped or self._taken in self._results

    def stop(self) -> None:
        """Drop all results, let the threads end, and stop the previous stages of the pipeline."""
        with self._changed:
            self._exhausted = self._stopped = True
            self._results.clear()
            self._changed.notify_all()
        if isinstance(self._source, ReadAhead):
            self._source.stop()

    def close_items(self) -> None:
        """Close the iterator of items, which may be a generator with open files."""
        close = getattr(self._items, "close", None)
        if close is not None:
            close()


def batches_through(
    buffer: Buffer, chunks: Iterable[Any], batch_size: int, *, least: int | None = None
) -> Iterator[Any]:
    """Iterate over batches from a buffer that a thread fills with chunks, by ``put_many``.

    Ends when all chunks have been put and the buffer is empty; with ``least``, when all chunks have
    been put and ``least`` batches were drawn, or no other batch is available. Reception does not
    end then, so that the remaining samples can be drawn later. An exception in ``chunks`` is raised
    in place of the next batch. Leaving the iteration early stops the thread.
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
    timeout = None if least is None else _POLL_SECONDS
    try:
        while True:
            is_filling = thread.is_alive()
            if least is not None and drawn >= least and not is_filling:
                break
            try:
                batch = buffer.get_batch(batch_size, timeout=timeout)
            except BufferDrainedError:
                break
            except queue.Empty:
                if not is_filling:
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
        if isinstance(chunks, ReadAhead):
            chunks.close()
        if thread is not threading.current_thread():  # when garbage is collected in it
            thread.join(_JOIN_SECONDS)
