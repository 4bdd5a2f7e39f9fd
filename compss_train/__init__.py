"""compss_train: train any PyTorch model with many workers, whose tasks run on the processes of this machine."""

from compss_train.data import BlockedTensor, shuffle
from compss_train.engines import Engine, LocalEngine, SerialEngine
from compss_train.exceptions import DivergedError, EngineClosedError, NotBuiltError, WorkerLostError
from compss_train.trainer import DistributedTrainer

__version__ = "0.1.0"

__all__ = [
    "BlockedTensor",
    "DistributedTrainer",
    "DivergedError",
    "Engine",
    "EngineClosedError",
    "LocalEngine",
    "NotBuiltError",
    "SerialEngine",
    "WorkerLostError",
    "shuffle",
]
