"""How fast is a GPU? Samples a second, against a plain PyTorch loop with pinned memory.

One command, one table: each network in fp32 (with TF32), in bf16, compiled, and skipping batches
that are not finite (the plain loop skips none), with 1 and 2 workers on the GPU.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import _common as common
import _peers as peers
import torch
from torch import nn

from compss_train import DistributedTrainer, Gradients

BATCH = 500
LENGTH = 64
CHARACTERS = 64


class LanguageModel(nn.Module):
    """A transformer of 3.2 million parameters that predicts each next character."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True
        )
        self.embedding = nn.Embedding(CHARACTERS, 256)
        self.places = nn.Parameter(torch.zeros(LENGTH, 256))
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.last = nn.Linear(256, CHARACTERS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (samples, characters, length)."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=x.device)
        hidden = self.layers(self.embedding(x) + self.places, mask=mask, is_causal=True)
        logits: torch.Tensor = self.last(hidden).transpose(1, 2)
        return logits


NETWORKS: dict[str, Callable[[], nn.Module]] = {**common.NETWORKS, "language model": LanguageModel}
MODES: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "compiled": {"compile": True},
    "skipping": {"gradients": Gradients(on_nan="skip")},
}


@dataclass(frozen=True)
class Task:
    """What is trained."""

    network: str
    mode: str
    samples: int
    epochs: int

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return x and y, on the CPU."""
        if self.network == "language model":
            generator = torch.Generator().manual_seed(0)
            text = torch.randint(CHARACTERS, (self.samples // 4, LENGTH + 1), generator=generator)
            return text[:, :-1].contiguous(), text[:, 1:].contiguous()
        images = common.load_images(self.samples)
        return torch.from_numpy(images.x), torch.from_numpy(images.y)

    def net(self) -> nn.Module:
        """Return the network, the same for all contestants."""
        torch.manual_seed(0)
        return NETWORKS[self.network]()


def ours(trainer: DistributedTrainer, task: Task, _: int) -> float:
    """Return the samples/s of a fit, in processes that serve all tasks; its warm-up compiles."""
    x, y = task.data()
    trainer.build(task.net(), common.SGD, "cross_entropy", num_gpu=1, **MODES[task.mode])
    fit = partial(common.fit, trainer, batch_size=BATCH)
    fit(x[: 4 * BATCH], y[: 4 * BATCH], epochs=2)
    return fit(x, y, epochs=task.epochs).rate


def plain(executor: ProcessPoolExecutor, task: Task, _: int) -> float:
    return executor.submit(run_loop, task).result()


def run_loop(task: Task) -> float:
    """Return the samples/s of a plain loop with pinned memory.

    It runs in a process that serves all tasks.
    """
    torch.compiler.reset()  # an earlier task's
    x, y = (tensor.pin_memory() for tensor in task.data())
    net = task.net().cuda()
    step = torch.compile(net) if task.mode == "compiled" else net
    optimizer = peers.optimizer_for(net, common.SGD)

    def epoch(samples: int) -> None:
        for rows in torch.randperm(samples).split(BATCH):
            batch_x = x[rows].pin_memory().cuda(non_blocking=True)
            batch_y = y[rows].pin_memory().cuda(non_blocking=True)
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16) if task.mode == "bf16" else nullcontext():
                loss = nn.functional.cross_entropy(step(batch_x), batch_y)
            loss.backward()
            optimizer.step()

    epoch(min(len(x), 4 * BATCH))
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(task.epochs):
        epoch(len(x))
    torch.cuda.synchronize()
    return len(x) * task.epochs / (time.perf_counter() - began)


def main() -> None:
    """Print one table."""
    options_parser = common.parser(__doc__, repetitions=3, epochs=10, samples=60_000)
    options_parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    options_parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    options = common.parsed(options_parser, samples=4_000, epochs=1)
    if not torch.cuda.is_available():
        print("SKIPPED: torch sees no CUDA device here, so that there is nothing to measure")
        return
    rows = []
    with ExitStack() as stack:
        stack.enter_context(common.environment(NVIDIA_TF32_OVERRIDE="1"))
        executor = stack.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))
        trainers = [
            stack.enter_context(DistributedTrainer(workers, engine="local", seed=0))
            for workers in (1, 2)
        ]
        for network, mode in product(options.networks, options.modes):
            task = Task(network, mode, options.samples, options.epochs)
            contestants: dict[str, Callable[[int], float]] = {
                peers.PLAIN: partial(plain, executor, task)
            }
            for trainer, name in zip(trainers, ("1 worker", "2 workers a GPU"), strict=True):
                contestants[name] = partial(ours, trainer, task)
            speeds = common.in_turn(contestants, options.repetitions)
            for name, values in speeds.items():
                to_loop = common.spread(common.ratios(values, speeds[peers.PLAIN]))
                rows.append([network, mode, name, common.spread(values, ",.0f"), to_loop])
            print(*rows[-len(contestants) :], sep="\n", file=sys.stderr)
    headers = ["network", "mode", "contestant", "samples/s", "to the plain loop (goal 0.97)"]
    common.print_table(torch.cuda.get_device_name(), headers, rows)


if __name__ == "__main__":
    main()
