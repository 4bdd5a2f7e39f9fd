"""compss_train: train any PyTorch model with many workers, on this machine or on a cluster of COMPSs.

Public names and submodules are imported on first use: the command ``compss-train`` needs no torch, and its doctor
must run without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compss_train._utils.imports import lazy_names, register_converter
from compss_train._utils.version import __version__ as __version__

__all__ = [
    "BadCheckpointError",
    "BadFileError",
    "BlockedTensor",
    "BufferSpec",
    "DistributedTrainer",
    "DivergedError",
    "Engine",
    "EngineClosedError",
    "FileDataset",
    "Gradients",
    "LocalEngine",
    "Merge",
    "NotBuiltError",
    "PartialShuffle",
    "PartialShuffleSampler",
    "Ragged",
    "Samples",
    "Schedule",
    "SerialEngine",
    "SimulationError",
    "Simulations",
    "StepContext",
    "TrainTransform",
    "TrainingEndedError",
    "WorkerLostError",
    "shuffle",
    "write_files",
]

_HOMES = {
    "buffers": ("BufferSpec",),
    "data.ragged": ("Ragged",),
    "data": ("BlockedTensor", "FileDataset", "Samples", "shuffle", "write_files"),
    "engines": ("Engine", "LocalEngine", "SerialEngine"),
    "integrations.sklearn": ("DistributedClassifier", "DistributedRegressor"),
    "exceptions": (
        *("BadCheckpointError", "BadFileError", "DivergedError", "EngineClosedError", "NotBuiltError"),
        *("SimulationError", "TrainingEndedError", "WorkerLostError"),
    ),
    "model.gradients": ("Gradients",),
    "model.schedule": ("Schedule",),
    "model.train_transform": ("TrainTransform",),
    "model.training_step": ("StepContext",),
    "online": ("SampleSender",),
    "online.simulations": ("Simulations",),
    "samplers": ("PartialShuffle", "PartialShuffleSampler"),
    "training.merge": ("Merge",),
    "trainer": ("DistributedTrainer",),
}
"""The submodules that the public names are in.

Names that need an extra are no part of ``__all__``: an import of everything has to work without it.
"""

if TYPE_CHECKING:
    from compss_train.buffers import BufferSpec
    from compss_train.data.blocked import BlockedTensor, shuffle
    from compss_train.data.files import FileDataset
    from compss_train.data.ragged import Ragged
    from compss_train.data.samples import Samples
    from compss_train.data.writing import write_files
    from compss_train.engines import Engine, LocalEngine, SerialEngine
    from compss_train.exceptions import (
        BadCheckpointError,
        BadFileError,
        DivergedError,
        EngineClosedError,
        NotBuiltError,
        SimulationError,
        TrainingEndedError,
        WorkerLostError,
    )
    from compss_train.integrations.sklearn import DistributedClassifier as DistributedClassifier
    from compss_train.integrations.sklearn import DistributedRegressor as DistributedRegressor
    from compss_train.model.gradients import Gradients
    from compss_train.model.schedule import Schedule
    from compss_train.model.train_transform import TrainTransform
    from compss_train.model.training_step import StepContext
    from compss_train.online import SampleSender as SampleSender
    from compss_train.online.simulations import Simulations
    from compss_train.samplers import PartialShuffle, PartialShuffleSampler
    from compss_train.trainer import DistributedTrainer
    from compss_train.training.merge import Merge
else:  # a type checker that saw this would take any name for one of the package's
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

# The data room gets blocks that are futures; tasks of the COMPSs engine, a room above it, determine their shapes.
register_converter("pycompss", "compss_train.engines.compss.engine:future_blocks")
