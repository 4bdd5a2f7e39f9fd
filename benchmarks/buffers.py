"""Batches from a Reservoir between one producer and one consumer, and the time of single calls of each buffer.

The peers are a bare copy into the rows of a tensor, a bare gather of rows, and a locked list. In the table of calls
the list holds views of the samples and copies nothing, neither when they come nor when they go: it shows what locks
cost, not what a buffer must do.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from _common import parser, print_table, ratios, spread
from torch.utils.data import default_collate

from compss_train.buffers import (
    FIFO,
    FIRO,
    BatchReservoir,
    Buffer,
    BufferDrainedError,
    ReceptionOverError,
    Reservoir,
)

FEATURES, BATCH, CAPACITY = 784, 128, 10_000
POOL = 60_000
"""Samples that the producer takes its messages from, in turn."""
PACE = 100_000
"""Samples a second of the producer that is paced: 314 MB/s."""
OURS, PACED, ALONE = "ours", f"ours, {PACE:,} put/s", "ours, no producer"
PLAIN, BARE = "locked list, default_collate", "bare gather"


@dataclass(frozen=True)
class Rates:
    """Samples a second."""

    got: float
    put: float = 0.0


class LockedList:
    """The plain way: a list of samples under a lock, one sample a call. Evicts like a Reservoir."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: list[list] = []  # [sample, seen]
        self._seen = 0
        self._over = False
        self._changed = threading.Condition()

    def put(self, sample: torch.Tensor) -> None:
        """Store a sample in the place of one that was got, waiting for such a place."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or len(self._entries) < self._capacity or self._seen)
            if len(self._entries) < self._capacity:
                self._entries.append([sample, False])
            elif not self._over:
                self._entries[self._find_seen()] = [sample, False]
                self._seen -= 1
            self._changed.notify_all()

    def _find_seen(self) -> int:
        while True:
            place = random.randrange(len(self._entries))
            if self._entries[place][1]:
                return place

    def get(self) -> torch.Tensor:
        """Return a random sample."""
        with self._changed:
            entry = random.choice(self._entries)
            if not entry[1]:
                entry[1] = True
                self._seen += 1
                self._changed.notify_all()
            return entry[0]

    def stop(self) -> None:
        """Let a put that waits go on."""
        with self._changed:
            self._over = True
            self._changed.notify_all()


class Producer:
    """A thread that puts one message after another, as fast as it can or at a pace."""

    def __init__(self, put: Callable[[torch.Tensor], None], pool: torch.Tensor, pace: int | None) -> None:
        self._put, self._pool, self._pace = put, pool, pace
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.samples = 0

    def _run(self) -> None:
        began = time.perf_counter()
        while not self._stopped.is_set():
            start = self.samples % (len(self._pool) - BATCH)
            try:
                self._put(self._pool[start : start + BATCH])
            except ReceptionOverError:
                return
            self.samples += BATCH
            if self._pace and (early := began + self.samples / self._pace - time.perf_counter()) > 0:
                self._stopped.wait(early)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, wake: Callable[[], None]) -> None:
        """End the thread, waking it where it waits for room."""
        self._stopped.set()
        wake()
        self._thread.join()


def timed(consume: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Return samples a second of calls that give a batch each, and the seconds that they took."""
    began, batches = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < seconds:
        consume()
        batches += 1
    return batches * BATCH / took, took


def run_ours(pool: torch.Tensor, seconds: float, pace: int | None, producing: bool = True) -> Rates:
    buffer = Reservoir(CAPACITY, CAPACITY // 2, seed=0)
    buffer.put_many(pool[:CAPACITY])
    if not producing:
        return Rates(timed(lambda: buffer.get_batch(BATCH), seconds)[0])
    producer = Producer(buffer.put_many, pool, pace)
    producer.start()
    got, took = timed(lambda: buffer.get_batch(BATCH), seconds)
    rates = Rates(got, producer.samples / took)
    producer.stop(buffer.signal_reception_over)
    drain(buffer)
    return rates


def drain(buffer: Reservoir) -> None:
    """See that every sample that was put was got."""
    try:
        while True:
            buffer.get_batch(1000)
    except BufferDrainedError:
        if buffer.repetitions()[0]:
            raise RuntimeError("samples were lost") from None


def run_plain(pool: torch.Tensor, seconds: float) -> Rates:
    buffer = LockedList(CAPACITY)
    for sample in pool[:CAPACITY]:
        buffer.put(sample)

    def put(message: torch.Tensor) -> None:
        for sample in message:
            buffer.put(sample)

    producer = Producer(put, pool, None)
    producer.start()
    got, took = timed(lambda: default_collate([buffer.get() for _ in range(BATCH)]), seconds)
    rates = Rates(got, producer.samples / took)
    producer.stop(buffer.stop)
    return rates


def run_bare(pool: torch.Tensor, seconds: float) -> Rates:
    held = pool[:CAPACITY].clone()
    return Rates(timed(lambda: held.index_select(0, torch.randint(CAPACITY, (BATCH,))), seconds)[0])


CALLS = 500
"""Single calls, and batches of ``BATCH``, in a measurement of the time of a call."""
KINDS: dict[str, Callable[[], Buffer]] = {
    "FIFO": lambda: FIFO(CAPACITY, seed=0),
    "FIRO": lambda: FIRO(CAPACITY, 0, seed=0),
    "Reservoir": lambda: Reservoir(CAPACITY, 0, seed=0),
    "BatchReservoir": lambda: BatchReservoir(CAPACITY, 0, 1, seed=0),
}
COPY, VIEWS = "bare copy, bare gather", "locked list of views (copies nothing)"
CALLED = ("put", "get", f"put_many of {BATCH}", f"get_batch of {BATCH}")


def microseconds(calls: list[Callable[[], object]]) -> float:
    """Return the time of one of these calls."""
    began = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - began) / len(calls) * 1e6


def call_ours(make: Callable[[], Buffer], pool: torch.Tensor) -> list[float]:
    """Return the times of the calls of a half full buffer; a reservoir is full and evicts a sample for each put."""
    buffer = make()
    buffer.put_many(pool[:CAPACITY])  # in memory that was used before
    while buffer.unseen > CAPACITY // 8 if isinstance(buffer, Reservoir) else len(buffer) > CAPACITY // 2:
        buffer.get_batch(1000)
    samples, batches = list(pool[-CALLS:]), list(pool[: CALLS // 10 * BATCH].split(BATCH))
    return [
        microseconds([lambda sample=sample: buffer.put(sample) for sample in samples]),
        microseconds([buffer.get] * CALLS),
        *alternating(buffer.put_many, lambda: buffer.get_batch(BATCH), batches),
    ]


def alternating(put: Callable[[torch.Tensor], object], get: Callable[[], object], batches: list) -> list[float]:
    """Return the times of puts and gets of batches in turn."""
    put_time = get_time = 0.0
    for batch in batches:
        put_time += microseconds([lambda batch=batch: put(batch)])
        get_time += microseconds([get])
    return [put_time / len(batches), get_time / len(batches)]


def call_bare(pool: torch.Tensor) -> list[float]:
    """Return the times of copies to rows, of batches to consecutive ones, and of gathers of random rows."""
    held = pool[:CAPACITY].clone()
    rows = torch.randint(CAPACITY - BATCH, (CALLS,)).tolist()
    starts, numbers = iter(rows), iter(torch.randint(CAPACITY, (CALLS, BATCH)))
    array = held.numpy()

    def copies(row: int, sample: object) -> Callable[[], object]:
        return lambda: array.__setitem__(row, sample)

    def copy_batch(batch: torch.Tensor) -> None:
        start = next(starts)
        held[start : start + BATCH].copy_(batch)

    return [
        microseconds([copies(row, sample) for row, sample in zip(rows, pool[-CALLS:].numpy(), strict=True)]),
        microseconds([lambda row=row: array[row].copy() for row in rows]),
        *alternating(
            copy_batch,
            lambda: held.index_select(0, next(numbers)),
            list(pool[: CALLS // 10 * BATCH].split(BATCH)),
        ),
    ]


def call_views(pool: torch.Tensor) -> list[float]:
    """Return the times of a list of views with a lock; a batch is as many calls, and collated."""
    lock, held = threading.Lock(), deque(pool[:CAPACITY])

    def put(sample: torch.Tensor) -> None:
        with lock:
            held.append(sample)

    def get() -> torch.Tensor:
        with lock:
            return held.popleft()

    return [
        microseconds([lambda sample=sample: put(sample) for sample in list(pool[-CALLS:])]),
        microseconds([get] * CALLS),
        *alternating(
            lambda batch: [put(sample) for sample in batch],
            lambda: default_collate([get() for _ in range(BATCH)]),
            list(pool[: CALLS // 10 * BATCH].split(BATCH)),
        ),
    ]


def main() -> None:
    options_parser = parser(__doc__, repetitions=5, epochs=0)
    options_parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    options_parser.add_argument("--threads", type=int, default=1, help="intra-op threads, as a worker has them")
    options = options_parser.parse_args()
    if options.quick:
        options.repetitions, options.seconds = 1, 0.3
    torch.set_num_threads(options.threads)
    pool = torch.rand(POOL, FEATURES)
    contestants: dict[str, Callable[[], Rates]] = {
        BARE: lambda: run_bare(pool, options.seconds),
        OURS: lambda: run_ours(pool, options.seconds, None),
        PACED: lambda: run_ours(pool, options.seconds, PACE),
        ALONE: lambda: run_ours(pool, options.seconds, None, producing=False),
        PLAIN: lambda: run_plain(pool, options.seconds),
    }
    results: dict[str, list[Rates]] = {}
    for repetition in range(options.repetitions):
        for label, contestant in contestants.items():
            results.setdefault(label, []).append(contestant())
            print(f"{repetition + 1}: {label}: {results[label][-1].got:,.0f}/s", file=sys.stderr)
    report(results, options.threads)
    report_calls(pool, 1 if options.quick else 5 * options.repetitions)


def report_calls(pool: torch.Tensor, repetitions: int) -> None:
    callers: dict[str, Callable[[], list[float]]] = {
        COPY: lambda: call_bare(pool),
        VIEWS: lambda: call_views(pool),
        **{kind: lambda make=make: call_ours(make, pool) for kind, make in KINDS.items()},
    }
    times: dict[str, list[list[float]]] = {label: [] for label in callers}
    for _ in range(repetitions):
        for label, caller in callers.items():
            times[label].append(caller())
    columns = {label: zip(*runs, strict=True) for label, runs in times.items()}
    rows = [[label, *(spread(list(column), ".1f") for column in columns[label])] for label in callers]
    print_table(f"Microseconds of a call, without other threads; {FEATURES} float32 a sample", ["", *CALLED], rows)


def report(results: dict[str, list[Rates]], threads: int) -> None:
    got = {label: [rates.got for rates in runs] for label, runs in results.items()}
    rows = [
        [
            label,
            spread(got[label], ",.0f"),
            spread([rates.put for rates in runs], ",.0f") if runs[0].put else "-",
            spread(ratios(got[label], got[BARE])),
            spread(ratios(got[label], got[PLAIN]), ".1f"),
        ]
        for label, runs in results.items()
    ]
    print_table(
        f"Batches of {BATCH} from {CAPACITY:,} samples of {FEATURES} float32, {threads} intra-op thread(s)",
        ["contestant", "samples got/s", "put/s meanwhile", "of bare (>= 0.5)", "of the list (>= 20)"],
        rows,
    )


if __name__ == "__main__":
    main()
