"""Readers that record which files they describe, for tests of file indexes."""

import os

from compss_train import FileDataset
from compss_train.data.readers import NpzReader

ALL = ["0.npz", "1.npz", "2.npz"]


class Opened(NpzReader):
    """Records the files that it described."""

    def __init__(self):
        self.files = []

    def describe(self, path, keys=None):
        self.files.append(os.path.basename(path))
        return super().describe(path, keys)


class Other(Opened):
    pass


def opened(files, index, keys=None, kind=Opened):
    """Return the files that a new data set opens."""
    reader = kind()
    dataset = FileDataset(files, reader, keys=keys, index=index)
    fresh = FileDataset(files, keys=keys)
    assert (dataset.files_len, dataset.layout) == (fresh.files_len, fresh.layout)
    return sorted(reader.files)
