"""The work of a worker on one block."""

from compss_train.data.block_passes import Batching, BlockPass
from compss_train.worker.work import Work, WorkOptions


def whole(x, size):
    """Return the work on all samples of a block in their order."""
    return Work(WorkOptions(batching=Batching(size=size)), (BlockPass(0, 0, len(x)),), blocks=(0,))
