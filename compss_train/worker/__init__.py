"""Worker: the plain functions that engines run as tasks. Knows no engine and no coordinator."""

from compss_train.worker.inference import evaluate, predict
from compss_train.worker.recipe import Recipe
from compss_train.worker.samples import split_rows
from compss_train.worker.shard import Shard
from compss_train.worker.train import WorkerState, train

__all__ = ["Recipe", "Shard", "WorkerState", "evaluate", "predict", "split_rows", "train"]
