"""Samplers: partial shuffles of samples in many files."""

from compss_train.samplers.by_file import (
    DistributedSamplerViaLocallyShuffle,
    DistributedSamplerViaLocallyShuffleV2,
)
from compss_train.samplers.partial import PartialShuffleSampler
from compss_train.samplers.pools import PartialShuffle

__all__ = [
    "DistributedSamplerViaLocallyShuffle",
    "DistributedSamplerViaLocallyShuffleV2",
    "PartialShuffle",
    "PartialShuffleSampler",
]
