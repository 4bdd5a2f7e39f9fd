"""Partial shuffles: orders in which samples move by about the size of a pool, so that files can be read in turn."""

from __future__ import annotations

from collections.abc import Iterator
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
        1: each stretch of ``pool`` numbers is permuted. 2: numbers are drawn at random from a first pool, where the
        next one of a permuted stretch takes each one's place, so that they travel further.
    seed, epoch:
        Of the random order.
    start:
        How many numbers at the beginning to leave out: the order after an interruption.

    Source: the samplers of microsoft/PartiallyShuffleDistributedSampler. Raises ``ValueError`` for other numbers.
    """
    check_count("samples", samples)
    check_count("pool", pool)
    check_count("start", start, least=0)
    if pools not in (1, 2):
        raise ValueError(f"pools={pools!r}: choose 1 or 2")
    random = partial_shuffle_generator(seed, epoch)
    stretches = _permuted_stretches(samples, pool, random)
    return _without_first(start, stretches if pools == 1 else _through_pool(stretches, random))


def _permuted_stretches(samples: int, pool: int, random: np.random.Generator) -> Iterator[Numbers]:
    for first in range(0, samples, pool):
        yield first + random.permutation(min(pool, samples - first))


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
