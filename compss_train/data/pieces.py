"""Pieces: the rows of each block that each worker needs when all samples are shuffled together.

A worker's samples come from everywhere. Where taking a block means reading it whole, each block is cut into a piece
a worker first, so that a round moves every sample once and not every block to every worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train.data.schedule import Share


def needed_samples(share: Share) -> NDArray[Any]:
    """Return the numbers of the samples that the visits name, each once and in ascending order."""
    return np.unique(np.concatenate([visit.samples for visit in share if visit.samples is not None]))


def rows_by_block(samples: NDArray[Any], starts: Sequence[int]) -> list[NDArray[Any]]:
    """Return each block's rows among ascending sample numbers; blocks begin at ``starts``."""
    cuts = [*np.searchsorted(samples, starts).tolist(), len(samples)]
    return [samples[low:high] - start for start, (low, high) in zip(starts, pairwise(cuts), strict=True)]


def renumbered(share: Share, samples: NDArray[Any]) -> Share:
    """Return the visits with samples numbered by their places among these ascending numbers."""
    return tuple(
        replace(visit, samples=np.searchsorted(samples, visit.samples)) if visit.samples is not None else visit
        for visit in share
    )
