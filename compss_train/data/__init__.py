"""Data: blocked tensors, the orders of samples, and the schedule of rounds. Knows no engine and no training."""

from compss_train.data.blocked import BlockedTensor
from compss_train.data.files import FileDataset
from compss_train.data.shuffle import shuffle

__all__ = ["BlockedTensor", "FileDataset", "shuffle"]
