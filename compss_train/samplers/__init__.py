"""Samplers: partial shuffles of samples that lie in many files. Knows no engine and no training."""

from compss_train.samplers.pools import partial_order

__all__ = ["partial_order"]
