"""The same training by this package and by Ray Train, each as its users write it.

Both have a cluster of their own, of the same size, that has started; they write a checkpoint an
epoch, and a worker may be killed once. Seconds are of the wall clock, as they are of several
processes.
"""

from __future__ import annotations

import inspect
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _common as common
import torch
from torch import nn

Outcome = dict[str, float]
"""Samples/s, seconds to the first step and in all, and test accuracy."""


class Watched:
    """Notes when a worker calls it first; once, some batches later, it kills its process.

    What it counts lies on disk, as workers call copies of it.
    """

    def __init__(self, folder: str, kill_after: int) -> None:
        self.folder = folder
        self.kill_after = kill_after
        """Batches of a process until it is killed, if no other was; 0 for never."""
        self.coordinator = os.getpid()

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the batch as it is."""
        process = os.getpid()
        if process == self.coordinator:  # which tries a batch before a fit
            return batch
        with open(os.path.join(self.folder, f"{process}.batches"), "ab") as counter:
            counter.write(b".")
            batches = counter.tell()
        if batches == 1:
            Path(self.folder, f"{process}.first").write_text(str(time.time()))
        if batches == self.kill_after and _is_first(self.killed):
            os.kill(process, signal.SIGKILL)
        return batch

    @property
    def killed(self) -> Path:
        """A file that is there once a process was killed."""
        return Path(self.folder, "killed")

    def first_step(self) -> float:
        """Return when the first of all was called."""
        return min(float(path.read_text()) for path in Path(self.folder).glob("*.first"))


def _is_first(path: Path) -> bool:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


# -- the programs of users


def train_with_ours(x: Any, y: Any, epochs: int, batch: int, folder: str, watched: Any) -> Any:
    from compss_train import DistributedTrainer
    from compss_train.callbacks import Checkpoint

    trainer = DistributedTrainer(2, engine="ray", seed=0, threads=1)
    sgd = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}
    trainer.build(common.network("MLP", 0), sgd, "cross_entropy", transform=watched)
    saved = [Checkpoint(folder)]
    trainer.fit(x, y, num_epochs=epochs, batch_size=batch, callbacks=saved, progress=False)
    return trainer.model(), [record["ended"] for record in trainer.history]


def train_with_ray_train(x: Any, y: Any, epochs: int, batch: int, folder: str, watched: Any) -> Any:
    import ray
    from ray import train
    from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

    def loop(config: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        context = train.get_context()
        rank = context.get_world_rank()
        size = context.get_world_size()
        x = torch.from_numpy(ray.get(config["x"])[rank::size].copy())
        y = torch.from_numpy(ray.get(config["y"])[rank::size].copy())
        net = prepare_model(common.network("MLP", 0))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        start = 0
        checkpoint = train.get_checkpoint()
        if checkpoint is not None:
            with checkpoint.as_directory() as saved:
                state = torch.load(os.path.join(saved, "state.pt"), weights_only=True)
            net.module.load_state_dict(state["net"])
            optimizer.load_state_dict(state["optimizer"])
            start = state["epoch"] + 1
        for epoch in range(start, epochs):
            torch.manual_seed(1000 * epoch + rank)
            for rows in torch.randperm(len(x)).split(batch):
                optimizer.zero_grad()
                outputs = net(watched(x.index_select(0, rows)))
                loss = nn.functional.cross_entropy(outputs, y.index_select(0, rows))
                loss.backward()
                optimizer.step()
            ended = time.time()
            with tempfile.TemporaryDirectory() as saved:
                checkpoint = None
                if rank == 0:
                    state = {"net": net.module.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save({**state, "epoch": epoch}, os.path.join(saved, "state.pt"))
                    checkpoint = train.Checkpoint.from_directory(saved)
                train.report({"ended": ended, "loss": loss.item()}, checkpoint=checkpoint)

    trainer = TorchTrainer(
        loop,
        train_loop_config={"x": ray.put(x), "y": ray.put(y)},
        scaling_config=train.ScalingConfig(num_workers=2),
        torch_config=TorchConfig(backend="gloo"),
        run_config=train.RunConfig(
            storage_path=folder, failure_config=train.FailureConfig(max_failures=1)
        ),
    )
    result = trainer.fit()
    net = common.network("MLP", 0)
    with result.checkpoint.as_directory() as saved:
        state = torch.load(os.path.join(saved, "state.pt"), weights_only=True)
    net.load_state_dict(state["net"])
    return net, result.metrics_dataframe["ended"].tolist()


# -- measuring them

PROGRAMS: dict[str, Callable[..., Any]] = {
    "ours": train_with_ours,
    "Ray Train": train_with_ray_train,
}


def lines_of(program: str) -> int:
    """Return the lines of a user's program, without empty ones."""
    return sum(bool(line.strip()) for line in inspect.getsource(PROGRAMS[program]).splitlines())


def measured(program: str, samples: int, epochs: int, kills: int, seed: int) -> Outcome:
    """Run a program, with a worker that is killed or without (``kills`` is 1 or 0).

    In an application of its own; ``seed`` is the number of the repetition.
    """
    import ray

    # A CPU more than workers, as Ray Train may need one for itself.
    ray.init(
        address="local",
        num_cpus=common.WORKERS + 1,
        include_dashboard=False,
        logging_level="ERROR",
        _system_config={"worker_niceness": 0},
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(map(str, _python_path()))}},
    )
    images = common.load_images(samples)
    batches = samples // common.WORKERS // common.BATCH
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        watched = Watched(folder, kill_after=batches + batches // 2 if kills else 0)
        began = time.time()
        net, ends = PROGRAMS[program](
            images.x, images.y, epochs, common.BATCH, os.path.join(folder, "saved"), watched
        )
        first = watched.first_step()
        if kills and not watched.killed.exists():
            raise RuntimeError(f"{program}: no worker was killed")
    ray.shutdown()
    return {
        # Of the epochs after the first, in which processes start.
        "rate": samples * (len(ends) - 1) / (ends[-1] - ends[0]),
        "first step": first - began,
        "training": ends[-1] - first,
        "accuracy": common.accuracy_of(net, images),
    }


def _python_path() -> list[Path]:
    return [common.HERE, common.HERE.parent]
