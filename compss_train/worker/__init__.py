"""The worker's side of training: plain functions that engines run as tasks.

They know neither engines nor the trainer. Processes that start ahead of time import this package,
and with it all tasks.
"""

from compss_train.worker import inference, train
from compss_train.worker.merging import merge

__all__ = ["inference", "merge", "train"]
