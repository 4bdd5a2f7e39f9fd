"""compss_train: train any PyTorch model with many workers, on this machine or on a cluster of COMPSs.

Public names and submodules are imported on first use: the command ``compss-train`` needs no torch, and its doctor
must run without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compss_train._utils import __version__ as __version__
from compss_train._utils.imports import lazy_names

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
    "model.optimizers": ("Gradients",),
    "model.schedule": ("Schedule",),
    "model.train_transform": ("TrainTransform",),
    "model.training_step": ("StepContext",),
    "online": ("SampleSender",),
    "online.simulations": ("Simulations",),
    "samplers": ("PartialShuffle", "PartialShuffleSampler"),
    "training.merge": ("Merge",),
    "trainer": ("DistributedTrainer",),
}
"""The submodules that the public names are in."""

_EXTRAS = {"DistributedClassifier", "DistributedRegressor", "SampleSender"}
"""Names that need an extra: an import of everything has to work without it."""

if TYPE_CHECKING:
    from compss_train.buffers import BufferSpec as BufferSpec
    from compss_train.data.blocked import BlockedTensor as BlockedTensor
    from compss_train.data.blocked import shuffle as shuffle
    from compss_train.data.files import FileDataset as FileDataset
    from compss_train.data.ragged import Ragged as Ragged
    from compss_train.data.samples import Samples as Samples
    from compss_train.data.writing import write_files as write_files
    from compss_train.engines import Engine as Engine
    from compss_train.engines import LocalEngine as LocalEngine
    from compss_train.engines import SerialEngine as SerialEngine
    from compss_train.exceptions import BadCheckpointError as BadCheckpointError
    from compss_train.exceptions import BadFileError as BadFileError
    from compss_train.exceptions import DivergedError as DivergedError
    from compss_train.exceptions import EngineClosedError as EngineClosedError
    from compss_train.exceptions import NotBuiltError as NotBuiltError
    from compss_train.exceptions import SimulationError as SimulationError
    from compss_train.exceptions import TrainingEndedError as TrainingEndedError
    from compss_train.exceptions import WorkerLostError as WorkerLostError
    from compss_train.integrations.sklearn import DistributedClassifier as DistributedClassifier
    from compss_train.integrations.sklearn import DistributedRegressor as DistributedRegressor
    from compss_train.model.optimizers import Gradients as Gradients
    from compss_train.model.schedule import Schedule as Schedule
    from compss_train.model.train_transform import TrainTransform as TrainTransform
    from compss_train.model.training_step import StepContext as StepContext
    from compss_train.online import SampleSender as SampleSender
    from compss_train.online.simulations import Simulations as Simulations
    from compss_train.samplers import PartialShuffle as PartialShuffle
    from compss_train.samplers import PartialShuffleSampler as PartialShuffleSampler
    from compss_train.trainer import DistributedTrainer as DistributedTrainer
    from compss_train.training.merge import Merge as Merge
else:  # a type checker that saw this would take any name for one of the package's
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
    __all__ = sorted({name for names in _HOMES.values() for name in names} - _EXTRAS)
