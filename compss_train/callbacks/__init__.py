"""Callbacks, which run in the coordinator between the rounds of a fit, or in its workers."""

from compss_train.callbacks.checkpoint import Checkpoint
from compss_train.callbacks.history_files import Csv, JsonLines
from compss_train.callbacks.monitoring import EarlyStopping
from compss_train.callbacks.profiling import Profile
from compss_train.callbacks.progress import ProgressBar, RoundLines
from compss_train.callbacks.ray_tune import RayTune
from compss_train.callbacks.report import Report
from compss_train.callbacks.trackers import MLflow, TensorBoard, WandB
from compss_train.callbacks.unfreezing import Unfreeze
from compss_train.training.callback import Callback
from compss_train.training.trainer_protocol import TrainerProtocol
from compss_train.worker.callbacks import WorkerCallback, WorkerContext

__all__ = [
    "Callback",
    "Checkpoint",
    "Csv",
    "EarlyStopping",
    "JsonLines",
    "MLflow",
    "Profile",
    "ProgressBar",
    "RayTune",
    "Report",
    "RoundLines",
    "TensorBoard",
    "TrainerProtocol",
    "Unfreeze",
    "WandB",
    "WorkerCallback",
    "WorkerContext",
]
