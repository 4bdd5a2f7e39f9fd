"""Seconds to shuffle and schedule 10 million samples of 16 bytes in 1,000 blocks, for 8 workers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import _common as common
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer, SerialEngine, shuffle
from compss_train.data.partitioning import RoundPlan
from compss_train.engines import Ref, Resources
from compss_train.engines.base import map_refs
from compss_train.engines.mapping import map_chunk
from compss_train.worker.batches import cut_batches
from compss_train.worker.source import source_of

WORKERS = 8
BATCH = 1_000
SEED = 0
Kind = Literal["total", "blocks"]
FLOOR = "numpy: permutation and indexing"


class Stop(BaseException):
    """Ends a fit, with what its first training task gets."""


class Stopping(SerialEngine):
    """Runs no training."""

    def _submit(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        returns: int,
        resources: Resources,
        priority: bool,
        place: int | None = None,
    ) -> Sequence[Ref]:
        if function is not map_chunk:
            return super()._submit(function, args, returns, resources, priority, place)
        task = inspect.signature(map_chunk).bind(*args).arguments
        job = task["shared"][0]
        job, values = map_refs((job, task["values"]), lambda ref: self.fetch([ref])[0])
        raise Stop(job, task["items"][0], values)


def first_task(x: BlockedTensor, y: BlockedTensor, how: Kind) -> tuple[Any, ...]:
    """Return the job and the work of the first worker in an epoch, and the blocks that it gets."""
    with DistributedTrainer(WORKERS, engine=Stopping(), seed=SEED, threads=1) as trainer:
        trainer.build(nn.Linear(4, 2), {"optimizer": "sgd", "lr": 0.1}, "cross_entropy")
        try:
            trainer.fit(x, y, num_epochs=1, batch_size=BATCH, shuffle=how, progress=False)
        except Stop as stop:
            return stop.args
    raise RuntimeError("the fit had no training task")


def schedule(x: BlockedTensor, how: Kind) -> None:
    """Plan the rounds of an epoch."""
    for _ in RoundPlan(x.sizes, WORKERS, 1, SEED, shuffle=how).rounds():
        pass


def gather(job: Any, work: Any, values: Any) -> None:
    """Go through all batches of one worker's share, as its training task does."""
    for _ in cut_batches(source_of(job, work, values), "cpu"):
        pass


def permute(x: NDArray[np.float32], y: NDArray[np.int64]) -> None:
    """Permute plain arrays."""
    order = np.random.default_rng(SEED).permutation(len(x))
    _ = x[order]
    _ = y[order]


def main() -> None:
    options_parser = common.parser(__doc__, repetitions=3, samples=10_000_000)
    options_parser.add_argument("--blocks", type=int, default=1_000)
    options = common.parsed(options_parser, samples=500_000)
    torch.set_num_threads(1)  # as in a worker's task
    flat_x = np.random.default_rng(SEED).standard_normal((options.samples, 4), np.float32)
    flat_y = np.arange(options.samples)
    x = BlockedTensor.from_array(flat_x, (options.blocks, 1))
    y = BlockedTensor.from_array(flat_y, (options.blocks, 1))
    steps: dict[str, Callable[[], object]] = {
        FLOOR: partial(permute, flat_x, flat_y),
        "shuffle(x, y)": partial(shuffle, x, y, SEED),
    }
    kinds: tuple[Kind, ...] = ("total", "blocks")
    for how in kinds:
        steps[f"schedule of an epoch, {how}"] = partial(schedule, x, how)
    for how in kinds:
        steps[f"a worker's share (1/{WORKERS}), {how}"] = partial(gather, *first_task(x, y, how))
    timed: dict[str, Callable[[int], float]] = {
        name: partial(lambda step, _: common.seconds_of(step), step) for name, step in steps.items()
    }
    seconds = common.in_turn(timed, options.repetitions)
    samples = f"{options.samples:,} samples of 4 float32 and an int64 target"
    title = f"{samples} in {options.blocks:,} blocks"
    common.print_rates(title, seconds, FLOOR, unit="seconds", form=".2f")


if __name__ == "__main__":
    main()
