"""Data: blocked tensors, files and their readers, random orders, and the partitioning of samples among workers."""

from compss_train.data.blocked import BlockedTensor, shuffle
from compss_train.data.files import FileDataset
from compss_train.data.writing import write_files

__all__ = ["BlockedTensor", "FileDataset", "shuffle", "write_files"]
