"""Melissa's interface of buffers: ``BufferType``, ``make_buffer``, and the queues that it makes.

A queue is a buffer of ``compss_train.buffers`` under Melissa's name, with the words of
``queue.Queue``.
"""

import threading
from collections import deque
from dataclasses import dataclass
from enum import Enum
from inspect import signature
from typing import Any

from compss_train import buffers
from compss_train._utils.validation import check_count
from compss_train.buffers.storage import Slots

_MOST_GETS = 1000
"""Gets of a thread that are told apart until ``task_done`` reports them; many programs never do."""


@dataclass(slots=True)
class _Gets:
    """One get that ``task_done`` has not reported yet, or several that are done together."""

    began: int
    """Number of samples that had been returned before, by which the oldest is known."""
    unreported: int
    """Number of gets."""
    new_samples: int
    """Samples that they returned for the first time."""


class BufferType(Enum):
    """The types of buffers, with Melissa's names and numbers."""

    FIFO = 0
    FIRO = 1
    Reservoir = 2
    BatchReservoir = 3
    SimPairedReservoir = 4


class BaseQueue(buffers.Buffer):
    """What all queues have in common: the methods and exceptions of ``queue.Queue``.

    They count samples. ``maxsize`` is the capacity, at least 1; the other arguments are those of
    the buffer of the same name, such as ``threshold`` and ``seed``.

    Each put adds a task for ``join``. It is done when a get has returned the sample, and
    ``task_done`` was called for that get: once, also if it returned a batch or a pair. For a get
    whose samples had all been returned before, ``task_done`` has no effect. A call is about the
    oldest get of its thread that was not reported yet; if there is none, of another thread. As in a
    ``Queue``, a sample may also be reported before it is returned.
    """

    def __init__(self, maxsize: int, *arguments: Any, **options: Any) -> None:
        super().__init__(maxsize, *arguments, **options)
        self._done = 0
        """Number of the samples put that are done."""
        self._early = 0
        """Samples that were reported before they were returned, and not returned since."""
        self._unreported: dict[int, deque[_Gets]] = {}
        """Gets that were not reported yet, by thread, the oldest first."""

    @property
    def maxsize(self) -> int:
        """The maximum number of samples held."""
        return self.capacity

    def qsize(self) -> int:
        """Return the number of samples held, as ``len`` does."""
        return len(self)

    def empty(self) -> bool:
        """Return whether no sample is held.

        If not, a get may still wait, for the threshold or a partner.
        """
        return not len(self)

    def full(self) -> bool:
        """Return whether ``maxsize`` samples are held.

        A put may still evict a sample of a reservoir.
        """
        return len(self) >= self.capacity

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Store one sample; waits and raises as ``Buffer.put`` does."""
        super().put(item, block, timeout)

    def put_nowait(self, item: Any) -> None:
        """Store one sample if there is room: ``put`` with ``block=False``."""
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        """Return what ``get`` returns if it is available: ``get`` with ``block=False``."""
        return self.get(block=False)

    @property
    def unfinished_tasks(self) -> int:
        """Number of samples put that were not yet returned and done.

        When reception is over, samples that will never be returned (time steps without a partner)
        do not count.
        """
        with self._lock:
            unfinished = self.samples_put - self._done
            if self.reception_over and not self._available():
                unfinished -= self._count_unseen()
            return max(0, unfinished)

    def task_done(self) -> None:
        """Report that what a get returned was processed.

        Raises ``ValueError`` if no get is left to report, and no task is unfinished.
        """
        with self._lock:
            if self._unreported:
                self._report_oldest_get()
            elif self.unfinished_tasks:
                self._done += 1
                self._early += 1
            else:
                raise ValueError(
                    f"task_done() called too many times: all {self.samples_put} samples put are "
                    "done, and all gets are reported; call it once for each get"
                )
            if not self.unfinished_tasks:
                self._notify()

    def _report_oldest_get(self) -> None:
        """Count the oldest get as done: of this thread, or, if it has none, of another."""
        thread = threading.get_ident()
        if thread not in self._unreported:
            thread = min(self._unreported, key=lambda key: self._unreported[key][0].began)
        gets = self._unreported[thread]
        oldest = gets[0]
        oldest.unreported -= 1
        if oldest.unreported == 0:
            self._done += oldest.new_samples
            gets.popleft()
        if not gets:
            del self._unreported[thread]

    def join(self) -> None:
        """Wait until every sample put was returned and done."""
        with self._lock:
            self._wait(lambda: not self.unfinished_tasks)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the contents, as ``Buffer.load_state_dict`` does.

        Samples that were returned before count as done.
        """
        with self._lock:
            super().load_state_dict(state)
            self._done = self.samples_put - self.unseen
            self._early = 0
            self._unreported.clear()

    def _draw(self, size: int) -> tuple[Slots, Slots]:
        unseen = self._count_unseen()
        drawn = super()._draw(size)  # type: ignore[safe-super]  # of the buffer of the same name
        new = unseen - self._count_unseen()
        early = min(new, self._early)
        self._early -= early
        if not early or early < new:
            gets = self._unreported.setdefault(threading.get_ident(), deque())
            gets.append(_Gets(self.samples_got, 1, new - early))
            if len(gets) > _MOST_GETS:  # the oldest two are done together
                oldest = gets.popleft()
                gets[0].began = oldest.began
                gets[0].unreported += oldest.unreported
                gets[0].new_samples += oldest.new_samples
        return drawn


class CounterMixin:
    """Of queues that count how often samples are returned: ``seen_counts`` and ``repetitions``."""


class ReceptionDependant:
    """Of queues whose end of reception is signalled by ``signal_reception_over``."""


class ThresholdMixin(ReceptionDependant):
    """Of queues whose gets wait until ``threshold`` samples are held, or reception is over."""


class BatchGetMixin:
    """Of queues whose gets return ``batch_size`` samples, stacked."""


class RandomEvictOnWriteQueue(BaseQueue):
    """A queue that evicts a random sample that was returned before when it is full."""


class SimPairedQueue(BaseQueue):
    """A queue of ``TimeStep`` whose gets return two of one simulation."""


class FIFO(CounterMixin, ReceptionDependant, BaseQueue, buffers.FIFO):
    """``compss_train.buffers.FIFO`` as a queue."""


class FIRO(CounterMixin, ThresholdMixin, BaseQueue, buffers.FIRO):
    """``compss_train.buffers.FIRO`` as a queue."""


class Reservoir(CounterMixin, ThresholdMixin, RandomEvictOnWriteQueue, buffers.Reservoir):
    """``compss_train.buffers.Reservoir`` as a queue."""


class BatchReservoir(BatchGetMixin, Reservoir, buffers.BatchReservoir):
    """``compss_train.buffers.BatchReservoir`` as a queue."""


class SimPairedReservoir(ThresholdMixin, SimPairedQueue, buffers.SimPairedReservoir):
    """``compss_train.buffers.SimPairedReservoir`` as a queue."""


def make_buffer(
    buffer_size: int,
    buffer_t: BufferType | str = BufferType.FIFO,
    per_server_watermark: int | None = None,
    pseudo_epochs: int | None = None,
    batch_size: int | None = None,
    sweep_size: int | None = None,
    nb_time_steps: int | None = None,
    comm_size: int = 1,
    *,
    seed: int | None = None,
    pin_memory: bool = False,
) -> BaseQueue:
    """Return a queue; the parameters and their order are those of Melissa's ``make_buffer``.

    Parameters
    ----------
    buffer_size:
        The capacity, and ``maxsize`` of the queue: maximum number of samples held.
    buffer_t:
        The type or its name in any case, FIFO by default.
    per_server_watermark:
        The threshold: the number of samples that a get waits for, at most ``buffer_size``. Required
        by all types but FIFO.
    pseudo_epochs:
        For FIRO: above 1, each sample is returned that many times, after all have been put; 1 by
        default.
    batch_size:
        Required by BatchReservoir: number of samples that each get returns.
    sweep_size, nb_time_steps:
        Required by SimPairedReservoir: number of simulations, and number of time steps of each.
    comm_size:
        Number of buffers that share the simulations; accepted, without effect.
    seed, pin_memory:
        As in ``Buffer``.

    Parameters that a type does not use are ignored. Raises ``ValueError`` if a required parameter
    is missing or a parameter is out of range.
    """
    names = {name.lower(): kind for name, kind in BufferType.__members__.items()}
    kind = names.get(buffer_t.lower()) if isinstance(buffer_t, str) else buffer_t
    if not isinstance(kind, BufferType):
        raise ValueError(f"buffer_t={buffer_t!r}: choose one of {', '.join(map(str, BufferType))}")
    check_count("buffer_size", buffer_size)
    if per_server_watermark is not None:
        check_count("per_server_watermark", per_server_watermark, least=0)
    if pseudo_epochs is not None:
        check_count("pseudo_epochs", pseudo_epochs)
    options = {
        "threshold": per_server_watermark,
        "passes": pseudo_epochs or 1,
        "batch_size": batch_size,
        "sweep_size": sweep_size,
        "nb_time_steps": nb_time_steps,
    }
    parameters = signature(getattr(buffers, kind.name)).parameters
    used = {name: value for name, value in options.items() if name in parameters}
    missing = [name for name, value in used.items() if value is None]
    if missing:
        words = " and ".join(missing).replace("threshold", "per_server_watermark")
        raise ValueError(f"{kind.name} requires {words}; give a value")
    return _QUEUES[kind.name](buffer_size, **used, seed=seed, pin_memory=pin_memory)


_QUEUES: dict[str, type[BaseQueue]] = {
    queue.__name__: queue for queue in (FIFO, FIRO, Reservoir, BatchReservoir, SimPairedReservoir)
}
