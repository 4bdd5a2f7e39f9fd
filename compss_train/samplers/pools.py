"""Partial shuffles: orders in which samples move by about the size of a pool, so that files can be read in turn.

With one pool, each stretch of as many samples as it holds is permuted. With two, samples are drawn at random from
the first, where the next one of a permuted stretch takes each one's place, so that they travel further.

Source: the samplers of microsoft/PartiallyShuffleDistributedSampler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train.data.order import partial_shuffle_generator
from compss_train.validation import check_count

Numbers = NDArray[np.int64]


def partial_order(
    samples: int, pool: int, *, pools: int = 1, seed: int = 0, epoch: int = 0, start: int = 0
) -> Iterator[Numbers]:
    """Iterate over a partial shuffle of the numbers 0 to ``samples``, about ``pool`` of them at a time.

    A pure function of its arguments that needs memory for the pools only.

    Parameters
    ----------
    samples:
        How many numbers there are, at least 1.
    pool:
        Numbers in a pool, at least 1.
    pools:
        1 or 2.
    seed, epoch:
        Of the random order.
    start:
        How many numbers at the beginning to leave out: the order after an interruption.

    Raises ``ValueError`` for other numbers.
    """
    check_count("samples", samples)
    check_count("start", start, least=0)
    check_pools(pool, pools)
    parts = _parts(samples, pool, pools, partial_shuffle_generator(seed, epoch), _as_counted)
    return _without_first(start, parts)


def check_pools(pool: int, pools: int) -> None:
    """Raise ``ValueError`` for numbers that make no pools."""
    check_count("shuffle_buffer", pool)
    if pools not in (1, 2):
        raise ValueError(f"pools={pools!r}: choose 1 or 2")


def slot_order(samples: int, pool: int, pools: int, random: np.random.Generator | None) -> Iterator[Numbers]:
    """Iterate over the same order by the slots that samples lie in, of ``pool * pools``.

    Samples 0, 1, 2... begin in slots 0, 1, 2..., and each later one, in turn, takes the slot that became free
    first: whoever puts the next sample where one was just taken out does right. Without ``random`` the order stays
    as it is, for which there is one pool.
    """
    left: deque[Numbers] = deque()

    def slots_of(first: int, number: int) -> Numbers:
        return _as_counted(first, number) if first < pool * pools else left.popleft()[:number]

    for part in _parts(samples, pool, pools, random, slots_of):
        left.append(part)
        yield part


def _as_counted(first: int, number: int) -> Numbers:
    return np.arange(first, first + number)


def _parts(
    samples: int, pool: int, pools: int, random: np.random.Generator | None, named: Callable[[int, int], Numbers]
) -> Iterator[Numbers]:
    """Iterate over the order; ``named(first, number)`` says what the samples of a stretch are called."""
    stretches = _stretches(samples, pool, random, named)
    return stretches if pools == 1 or random is None else _through_pool(stretches, random)


def _stretches(
    samples: int, pool: int, random: np.random.Generator | None, named: Callable[[int, int], Numbers]
) -> Iterator[Numbers]:
    for first in range(0, samples, pool):
        number = min(pool, samples - first)
        names = named(first, number)
        yield names if random is None else names[random.permutation(number)]


def _through_pool(stretches: Iterator[Numbers], random: np.random.Generator) -> Iterator[Numbers]:
    pool = next(stretches)
    for stretch in stretches:
        yield exchange(pool, stretch, random.integers(len(pool), size=len(stretch)))
    yield random.permutation(pool)


def exchange(pool: Numbers, arriving: Numbers, places: NDArray[Any]) -> Numbers:
    """Take the number at each of the places in turn, putting the next arriving one there; return those taken.

    Changes ``pool``. What is at a place named for the first time was in the pool; later, it is what arrived when
    the place was named before: all places at once instead of one by one.
    """
    order = np.argsort(places, kind="stable")
    place = places[order]
    is_first = np.append(True, place[1:] != place[:-1])
    arrived = arriving[order]
    taken = np.empty_like(arriving)
    taken[order] = np.where(is_first, pool[place], np.roll(arrived, 1))
    is_last = np.append(is_first[1:], True)
    pool[place[is_last]] = arrived[is_last]
    return taken


def _without_first(number: int, parts: Iterator[Numbers]) -> Iterator[Numbers]:
    for part in parts:
        rest = part[number:]
        number -= len(part) - len(rest)
        if len(rest):
            yield rest
