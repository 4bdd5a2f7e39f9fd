"""Buffers: bounded stores of samples between threads that put them and the training loop."""

from compss_train.buffers.base import Buffer
from compss_train.buffers.kinds import FIFO, FIRO, BatchReservoir, Reservoir
from compss_train.buffers.paired import SimPairedReservoir, TimeStep
from compss_train.buffers.spec import BufferSpec
from compss_train.exceptions import BufferDrainedError, BufferFullError, ReceptionOverError

__all__ = [
    "FIFO",
    "FIRO",
    "BatchReservoir",
    "Buffer",
    "BufferDrainedError",
    "BufferFullError",
    "BufferSpec",
    "ReceptionOverError",
    "Reservoir",
    "SimPairedReservoir",
    "TimeStep",
]
