"""Uses GPUs that are declared, though the machine may have none; writes the GPU or error of each
task.
"""

import json
import os
import sys
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
        }
    Path(sys.argv[1]).write_text(json.dumps(result))
