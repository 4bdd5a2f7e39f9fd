"""Data: blocked tensors, files, data sets, random orders, and partitions among workers."""

from compss_train.data.blocked import BlockedTensor, shuffle
from compss_train.data.files import FileDataset
from compss_train.data.samples import Samples
from compss_train.data.writing import write_files

__all__ = ["BlockedTensor", "FileDataset", "Samples", "shuffle", "write_files"]
