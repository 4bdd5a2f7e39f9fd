"""Packing: which workers share a task, so that tasks do not cost more than they train.

Workers that share a task are those of an aligned range, whose results are one node of the tree of
``weighted_mean``.
"""

import heapq


def singles(workers: range) -> list[range]:
    """Return a range for each worker."""
    return [range(worker, worker + 1) for worker in workers]


def aligned_ranges(workers: int, slots: int, smallest: int = 1) -> list[range]:
    """Return a range of workers for each task, so that slots share the tasks evenly.

    Each range is a node of the tree of ``weighted_mean``. ``smallest`` is a power of two: the
    minimum number of workers in every range but the last. The first tasks are the largest: each has
    about a third of a slot's share of the remaining workers (guided self-scheduling,
    Polychronopoulos and Kuck 1987), rounded down to a power of two. A slow slot then runs fewer
    tasks. With a third, one of two slots may be four times slower than the other and start with the
    largest task, and the round still takes no longer than their combined speed allows, apart from
    the last task. With a half it would take a quarter longer.
    """
    ranges = []
    start = 0
    while start < workers:
        share = (workers - start) // (3 * slots)
        size = max(smallest, 1 << (max(1, share).bit_length() - 1))
        ranges.append(range(start, min(start + size, workers)))
        start += size
    return ranges


SLACK = 1.05
"""How much longer than with the best ranges a round may take, so that slow slots run fewer tasks.
"""


def ranges_for_costs(
    workers: int, slots: int, worker_seconds: float, task_seconds: float
) -> list[range]:
    """Return aligned ranges of workers for tasks with an overhead of ``task_seconds``.

    They are the smallest ranges with which a round takes at most ``SLACK`` times as long as with
    the best ones, if all slots are equally fast and a worker takes ``worker_seconds``: one range a
    slot where workers take less time than the overhead. Without any slots, each range is one
    worker.
    """
    if not slots:
        return singles(range(workers))
    largest = -(-workers // slots) - 1
    choices = [
        aligned_ranges(workers, slots, 1 << power) for power in range(largest.bit_length() + 1)
    ]
    times = []
    for ranges in choices:
        idle_at = [0.0] * slots  # a slot takes the next range as soon as it is idle
        for group in ranges:
            idle_again = idle_at[0] + task_seconds + len(group) * worker_seconds
            heapq.heapreplace(idle_at, idle_again)
        times.append(max(idle_at))
    return next(
        ranges
        for ranges, round_seconds in zip(choices, times, strict=True)
        if round_seconds <= SLACK * min(times)
    )
