"""The loading pipeline: reading, decoding and transforms run ahead in threads while the model trains.

``ReadAhead`` applies a function to items in threads, a few items ahead of whoever iterates; one around another is a
pipeline of stages. ``through`` lets what is loaded pass through a buffer.
"""

from __future__ import annotations

import heapq
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Self, TypeVar

from compss_train._utils.validation import check_count
from compss_train.buffers import Buffer, BufferDrainedError

Item = TypeVar("Item")
Result = TypeVar("Result")

_JOIN_SECONDS = 1.0  # how long a closed pipeline waits for what its threads are reading at that moment


class ReadAhead(Iterator[Result], Generic[Result]):
    """Iterates over ``load(item)`` for every item, computed in threads ahead of time.

    Parameters
    ----------
    items:
        What to load; iterated over in the threads, one at a time, and no further than ``depth`` ahead.
    load:
        Called in the threads. Reading, and most of numpy and torch, runs beside the training; what is computed in
        Python itself takes turns with it.
    threads:
        How many items are loaded at the same time, 1 by default.
    depth:
        How many results there are at most that were not taken yet, loaded or being loaded; by default two a thread.
    ordered:
        Give results in the order of the items (default), or as soon as they are there.

    The threads start at once. An exception in ``items`` or ``load`` is raised where its result would have come, and
    ends the iteration. ``close()``, a ``with`` block or the garbage collector stops the threads; those that wait
    stop at once, and those that are in ``load`` when it returns, which ``close`` waits a second for. Then ``items``
    is closed, too, if it is a generator. Another ``ReadAhead`` as ``items`` is stopped at once.
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
                f"depth={depth}, threads={threads}: each thread loads a result, so give at least as many"
            )
        self._work: _Work[Any, Result] = _Work(items, load, depth, ordered)
        self._threads = [
            threading.Thread(target=self._work.run, name=f"read-ahead-{number}", daemon=True)
            for number in range(threads)
        ]
        weakref.finalize(self, self._work.stop)  # the threads know the work, not this object
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Result:
        return self._work.take()

    @property
    def ready(self) -> bool:
        """Whether the next result is there, so that taking it does not wait."""
        return self._work.is_ready()

    def close(self) -> None:
        """Stop the threads; nothing more comes."""
        self._work.stop()
        until = time.monotonic() + _JOIN_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            self._work.close_items()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Work(Generic[Item, Result]):
    """What the threads and the consumer share: items to load, and results by number in a priority queue."""

    def __init__(self, items: Iterable[Item], load: Callable[[Item], Result], depth: int, ordered: bool) -> None:
        self._source = items
        self._items = iter(items)
        self._load = load
        self._depth = depth
        self._ordered = ordered
        self._picking = threading.Lock()  # held by the one thread that asks for the next item
        self._changed = threading.Condition()
        self._results: list[tuple[int, Result | None, BaseException | None]] = []  # a heap by rank
        self._picked = self._delivered = self._taken = 0
        self._ended = False  # no more items
        self._stopped = False  # and nobody wants their results

    def run(self) -> None:
        """Load items until there are none."""
        while (picked := self._pick()) is not None:
            number, item = picked
            try:
                self._deliver(number, self._load(item), None)
            except StopIteration as error:  # would end the iteration without a word
                self._deliver(number, None, _chained(RuntimeError("load raised StopIteration"), error))
            except BaseException as error:
                self._deliver(number, None, error)

    def _pick(self) -> tuple[int, Item] | None:
        """Return the next item and its number, once there is room for its result."""
        with self._picking:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._picked - self._taken < self._depth)
                if self._ended:
                    return None
                number = self._picked
            try:
                item = next(self._items)
            except StopIteration:
                self._end()
                return None
            except BaseException as error:
                self._count()
                self._deliver(number, None, error)
                self._end()
                return None
            self._count()
            return number, item

    def _count(self) -> None:
        with self._changed:
            self._picked += 1

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _deliver(self, number: int, result: Result | None, error: BaseException | None) -> None:
        with self._changed:
            if not self._stopped:
                rank = number if self._ordered else self._delivered
                heapq.heappush(self._results, (rank, result, error))
                self._delivered += 1
                self._changed.notify_all()

    def take(self) -> Result:
        """Return the next result, waiting for it; raise its exception, or ``StopIteration`` after the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_next_there() or self._is_over())
            if not self._is_next_there():
                raise StopIteration
            _, result, error = heapq.heappop(self._results)
            self._taken += 1
            self._changed.notify_all()
        if error is not None:
            self.stop()
            raise error
        return result  # type: ignore[return-value]

    def is_ready(self) -> bool:
        """Return whether ``take`` would return or raise at once."""
        with self._changed:
            return self._is_next_there() or self._is_over()

    def _is_next_there(self) -> bool:
        return bool(self._results) and self._results[0][0] == self._taken

    def _is_over(self) -> bool:
        return self._stopped or (self._ended and self._taken == self._picked)

    def stop(self) -> None:
        """Forget what was loaded, let the threads end, and stop the stages before this one."""
        with self._changed:
            self._ended = self._stopped = True
            self._results.clear()
            self._changed.notify_all()
        if isinstance(self._source, ReadAhead):
            self._source._work.stop()

    def close_items(self) -> None:
        """Close what gave the items, a generator that has files open, say."""
        close = getattr(self._items, "close", None)
        if close is not None:
            close()


def _chained(error: RuntimeError, cause: BaseException) -> RuntimeError:
    error.__cause__ = cause
    return error


def through(buffer: Buffer, chunks: Iterable[Any], batch_size: int) -> Iterator[Any]:
    """Iterate over batches from a buffer that a thread fills with chunks (what ``put_many`` takes) meanwhile.

    Ends when all chunks were put and the buffer is empty. An exception in ``chunks`` is raised instead of the next
    batch. When the iteration is left early, so is the filling.
    """
    with _Filling(buffer, chunks) as filling:
        while True:
            try:
                batch = buffer.get_batch(batch_size)
            except BufferDrainedError:
                batch = None
            filling.check()
            if batch is None:
                return
            yield batch


class _Filling:
    """A thread that fills a buffer."""

    def __init__(self, buffer: Buffer, chunks: Iterable[Any]) -> None:
        self._buffer = buffer
        self._chunks = chunks
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="fill-buffer", daemon=True)

    def _run(self) -> None:
        try:
            for chunk in self._chunks:
                self._buffer.put_many(chunk)
        except BaseException as error:
            self._error = error
        finally:
            self._buffer.signal_reception_over()

    def check(self) -> None:
        """Raise what the thread ran into."""
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._buffer.signal_reception_over()
        if isinstance(self._chunks, ReadAhead):
            self._chunks.close()
        if self._thread is not threading.current_thread():  # the garbage collector's, perhaps
            self._thread.join(_JOIN_SECONDS)
