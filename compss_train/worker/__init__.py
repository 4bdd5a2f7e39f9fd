"""The worker's side of training: plain functions that engines run as tasks. Independent of engine and trainer."""

from compss_train.worker.batches import split_rows
from compss_train.worker.callbacks import WorkerCallback, WorkerContext
from compss_train.worker.inference import evaluate, predict
from compss_train.worker.merge import MergeRule, finish
from compss_train.worker.state import WorkerState
from compss_train.worker.train import GroupState, Result, losses_by_rate, train, train_alone, train_group
from compss_train.worker.work import OptimizerState, Reading, Step, Work

__all__ = [
    "GroupState",
    "MergeRule",
    "OptimizerState",
    "Reading",
    "Result",
    "Step",
    "Work",
    "WorkerCallback",
    "WorkerContext",
    "WorkerState",
    "evaluate",
    "finish",
    "losses_by_rate",
    "predict",
    "split_rows",
    "train",
    "train_alone",
    "train_group",
]
