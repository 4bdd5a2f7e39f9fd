"""The work of a worker on one block."""

import torch

from compss_train.data.block_passes import Batching, BlockPass
from compss_train.model.training_spec import TrainingSpec
from compss_train.worker.work import Job, Work


def job_of(size, **options):
    """Return the job of tasks that make batches of this size, by default of a small network."""
    spec = TrainingSpec(
        net=torch.nn.Linear(1, 1), optimizer=torch.optim.SGD, loss=torch.nn.MSELoss()
    )
    return Job(**{"spec": spec, "batching": Batching(size=size), **options})


def whole(x):
    """Return the work on all samples of a block in their order."""
    return Work((BlockPass(0, 0, len(x)),), blocks=(0,))
