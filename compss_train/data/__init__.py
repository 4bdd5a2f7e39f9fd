"""Data: blocked tensors, the orders of samples, and the schedule of rounds. Knows no engine and no training."""

from compss_train.data.blocked import BlockedTensor
from compss_train.data.files import FileDataset
from compss_train.data.shuffle import shuffle
from compss_train.data.writing import write_files

__all__ = ["BlockedTensor", "FileDataset", "shuffle", "write_files"]
