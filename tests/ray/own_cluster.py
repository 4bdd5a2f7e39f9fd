"""A program that trains on a cluster of its own, with a network of its own; a stranger tries to
join meanwhile.
"""

import os
import subprocess
import sys

import numpy as np
import ray
from torch import nn

from compss_train import DistributedTrainer
from compss_train.callbacks import Callback
from compss_train.engines import RayEngine

PROGRAM = "import ray, sys; ray.init(address=sys.argv[1], logging_level='ERROR'); print('in')"


class Own(nn.Module):
    """Found nowhere but in this script."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.nice = os.nice(0)

    def forward(self, x):
        print(f"a worker prints, as nice as the program: {os.nice(0) == self.nice}", flush=True)
        return self.linear(x)


class Stranger(Callback):
    """Tries to join while the fit runs, as Ray gives up only after 20 seconds."""

    def __init__(self, before: dict[str, str]) -> None:
        self._environment = {**before, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}

    def on_fit_start(self, trainer, total_samples):
        command = [sys.executable, "-c", PROGRAM, ray.get_runtime_context().gcs_address]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=self._environment, **pipes)


if __name__ == "__main__":
    before = {*os.environ}
    with DistributedTrainer(2, engine="ray", seed=0, threads=1) as trainer:
        trainer.build(Own(), {"optimizer": "sgd", "lr": 0.1}, "cross_entropy")
        data = (np.zeros((40, 3), "float32"), np.zeros(40, "int64"))
        stranger = Stranger(dict(os.environ))
        trainer.fit(*data, num_epochs=2, batch_size=5, callbacks=[stranger], progress=False)
        print(f"nodes {[node.name for node in RayEngine.nodes()]}")
        out, errors = stranger.process.communicate()
        print(f"stranger: {stranger.process.returncode} {'AuthenticationError' in errors} {out!r}")
    print(f"left running: {ray.is_initialized()}")
    print(
        "left in the environment: "
        f"{[name for name in {*os.environ} - before if name.startswith('RAY_')]}"
    )
