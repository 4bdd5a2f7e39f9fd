"""A program that trains on a cluster of its own, with a network of its own; a stranger tries to join meanwhile."""

import os
import subprocess
import sys

import numpy as np
import ray
from torch import nn

from compss_train import DistributedTrainer
from compss_train.engines import RayEngine

STRANGER = "import ray, sys; ray.init(address=sys.argv[1], logging_level='ERROR'); print('in')"


class Own(nn.Module):
    """Found nowhere but in this script."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        print("a worker prints", flush=True)
        return self.linear(x)


if __name__ == "__main__":
    before = dict(os.environ)
    with DistributedTrainer(2, engine="ray", seed=0, threads=1) as trainer:
        trainer.build(Own(), {"optimizer": "sgd", "lr": 0.1}, "cross_entropy")
        trainer.fit(np.zeros((40, 3), "float32"), np.zeros(40, "int64"), num_epochs=2, batch_size=5, progress=False)
        print(f"nodes {[node.name for node in RayEngine.nodes()]}")
        environment = {**before, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
        command = [sys.executable, "-c", STRANGER, ray.get_runtime_context().gcs_address]
        stranger = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        print(f"stranger: {stranger.returncode} {'AuthenticationError' in stranger.stderr} {stranger.stdout!r}")
    print(f"left running: {ray.is_initialized()}")
