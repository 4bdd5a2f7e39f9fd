"""Buffers: where samples wait between the thread that receives them and the training loop."""

from compss_train.buffers.base import Buffer
from compss_train.buffers.errors import BufferDrainedError, BufferFullError, ReceptionOverError
from compss_train.buffers.fifo import FIFO
from compss_train.buffers.firo import FIRO
from compss_train.buffers.make import BufferType, make_buffer
from compss_train.buffers.paired import SimPairedReservoir, TimeStep
from compss_train.buffers.reservoir import BatchReservoir, Reservoir
from compss_train.buffers.spec import BufferSpec

__all__ = [
    "FIFO",
    "FIRO",
    "BatchReservoir",
    "Buffer",
    "BufferDrainedError",
    "BufferFullError",
    "BufferSpec",
    "BufferType",
    "ReceptionOverError",
    "Reservoir",
    "SimPairedReservoir",
    "TimeStep",
    "make_buffer",
]
