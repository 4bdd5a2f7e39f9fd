"""Uses GPUs that are declared, though the machine may have none; writes the GPU or error of each task."""

import json
import os
import sys
import warnings
from pathlib import Path

import torch

from compss_train import DistributedTrainer
from compss_train.engines import CompssEngine, Resources


def bound():
    return os.environ["COMPSS_BINDED_GPUS"]


def gpus_or_errors(engine):
    refs = [engine.submit(bound, resources=Resources(gpus=1)) for _ in range(3)]
    for ref in refs:
        try:
            yield engine.fetch([ref])[0]
        except RuntimeError as error:
            yield str(error)


def submit_limited(engine):
    """Submit tasks of which two may run at a time, though there are more GPUs; the graph shows what waits."""
    refs = [engine.submit(bound, resources=Resources(gpus=1, gpu_tasks=2)) for _ in range(5)]
    engine.delete(refs)


def warning_of_other_nodes():
    trainer = DistributedTrainer(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.build(torch.nn.Linear(1, 1), {"optimizer": "sgd", "lr": 0.1}, "mse", num_nodes=3)
        trainer.build(torch.nn.Linear(1, 1), {"optimizer": "sgd", "lr": 0.1}, "mse")
    return [str(warning.message) for warning in caught]


def error_of_too_many_gpus():
    trainer = DistributedTrainer(2)
    try:
        trainer.build(torch.nn.Linear(1, 1), {"optimizer": "sgd", "lr": 0.1}, "mse", num_gpu=5)
    except ValueError as error:
        return str(error)
    return None


def error_of_too_many_units():
    try:
        CompssEngine().submit(bound, resources=Resources(cpus=99))
    except ValueError as error:
        return str(error)
    return None


if __name__ == "__main__":
    with CompssEngine() as engine:
        result = {
            "gpus": list(gpus_or_errors(engine)),
            "too many GPUs": error_of_too_many_gpus(),
            "too many units": error_of_too_many_units(),
            "other nodes": warning_of_other_nodes(),
        }
        submit_limited(engine)
    Path(sys.argv[1]).write_text(json.dumps(result))
