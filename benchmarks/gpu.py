"""Samples a second on a GPU, against a plain PyTorch loop with pinned memory, and DDP where there are two.

One command, one table: each network in fp32 (with TF32), in bf16, compiled, and skipping batches that are not
finite (the plain loop skips none), with 1 and 2 workers a GPU. The share of time in which the GPU is busy is read
from ``nvidia-smi`` while a contestant trains.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean, median
from typing import Any

import torch
from _common import cnn, load_images, mlp, parser, print_table, ratios, spread
from _ranks import join_group, meet, run_ranks
from torch import nn

from compss_train import DistributedTrainer, Gradients

BATCH = 500
TARGET = 0.97
LENGTH, CHARACTERS = 64, 64
PLAIN, DDP = "plain loop", "DDP, 2 GPUs"


class LanguageModel(nn.Module):
    """A transformer of 3.2 million parameters that predicts each next character."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True)
        self.embedding, self.places = nn.Embedding(CHARACTERS, 256), nn.Parameter(torch.zeros(LENGTH, 256))
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.last = nn.Linear(256, CHARACTERS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (samples, characters, length)."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=x.device)
        hidden = self.layers(self.embedding(x) + self.places, mask=mask, is_causal=True)
        return self.last(hidden).transpose(1, 2)


NETWORKS: dict[str, Callable[[], nn.Module]] = {"MLP": mlp, "CNN": cnn, "language model": LanguageModel}
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
    folder: str = ""
    rank: int = 0
    ranks: int = 1


@dataclass(frozen=True)
class Outcome:
    """What a contestant reached."""

    speed: float
    """Samples a second."""
    busy: float
    """Percentage of the time in which a kernel ran."""
    megabytes: float
    """Peak of the memory that torch has allocated on the first GPU, of the plain loop."""


def samples_of(task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x and y, on the CPU."""
    if task.network == "language model":
        text = torch.randint(
            CHARACTERS, (task.samples // 4, LENGTH + 1), generator=torch.Generator().manual_seed(0)
        )
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()
    images = load_images(task.samples)
    return torch.from_numpy(images.x), torch.from_numpy(images.y)


class Busy:
    """Context manager that asks ``nvidia-smi`` how busy the first GPU is."""

    def __enter__(self) -> Busy:
        self._seen: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        command = ["nvidia-smi", "--id=0", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        while not self._ended.wait(0.2):
            try:
                self._seen.append(float(subprocess.run(command, capture_output=True, check=True).stdout))
            except (OSError, ValueError, subprocess.CalledProcessError):
                return

    def percent(self) -> float:
        """Return the mean, or NaN where nothing was seen."""
        return fmean(self._seen) if self._seen else float("nan")


@contextmanager
def ours(workers: int) -> Iterator[Callable[[Task], Outcome]]:
    """Yield a function that fits, in processes that serve all tasks; its warm-up compiles."""
    with DistributedTrainer(workers, engine="local", seed=0) as trainer:

        def build(task: Task) -> None:
            torch.manual_seed(0)
            optimizer = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}
            trainer.build(NETWORKS[task.network](), optimizer, "cross_entropy", num_gpu=1, **MODES[task.mode])

        def run(task: Task) -> Outcome:
            x, y = samples_of(task)
            build(task)
            trainer.fit(x[: 4 * BATCH], y[: 4 * BATCH], num_epochs=2, batch_size=BATCH, progress=False)
            began = time.perf_counter()
            with Busy() as busy:
                trainer.fit(x, y, num_epochs=task.epochs, batch_size=BATCH, progress=False)
            return Outcome(len(x) * task.epochs / (time.perf_counter() - began), busy.percent(), float("nan"))

        yield run


@contextmanager
def plain() -> Iterator[Callable[[Task], Outcome]]:
    """Yield a function that trains in a plain loop, in a process that serves all tasks."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        yield lambda task: executor.submit(run_loop, task).result()


def run_loop(task: Task) -> Outcome:
    """Train in a plain loop with pinned memory; as one rank of DDP if there are several."""
    device = torch.device("cuda", task.rank)
    torch.cuda.set_device(device)
    torch.cuda.reset_peak_memory_stats()
    torch.compiler.reset()  # an earlier task's
    x, y = (each[task.rank :: task.ranks].contiguous().pin_memory() for each in samples_of(task))
    torch.manual_seed(0)
    net: nn.Module = NETWORKS[task.network]().to(device)
    if task.ranks > 1:
        join_group(task.folder, task.rank, task.ranks)
        net = nn.parallel.DistributedDataParallel(net, device_ids=[task.rank])
    step = torch.compile(net) if task.mode == "compiled" else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def epoch(samples: int) -> None:
        order = torch.randperm(samples)
        for start in range(0, samples, BATCH):
            rows = order[start : start + BATCH]
            own_x, own_y = (each[rows].pin_memory().to(device, non_blocking=True) for each in (x, y))
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16) if task.mode == "bf16" else nullcontext():
                loss = nn.functional.cross_entropy(step(own_x), own_y)
            loss.backward()
            optimizer.step()

    epoch(min(len(x), 4 * BATCH))
    torch.cuda.synchronize()
    meet()
    began = time.perf_counter()
    with Busy() as busy:
        for _ in range(task.epochs):
            epoch(len(x))
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    return Outcome(len(x) * task.epochs / seconds, busy.percent(), torch.cuda.max_memory_allocated() / 1e6)


@contextmanager
def ddp() -> Iterator[Callable[[Task], Outcome]]:
    """Yield a function that returns the sum of two ranks."""

    def run(task: Task) -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            tasks = [replace(task, folder=folder, rank=rank, ranks=2) for rank in range(2)]
            first, second = run_ranks(run_loop, tasks)
        return replace(first, speed=2 * min(first.speed, second.speed))

    yield run


def row_of(task: Task, name: str, outcomes: list[Outcome], loops: list[Outcome]) -> list[str]:
    """Return a contestant's cells."""
    speeds = [each.speed for each in outcomes]
    to_loop = spread(ratios(speeds, [each.speed for each in loops]))
    busy, megabytes = (median(each.busy for each in outcomes), median(each.megabytes for each in outcomes))
    return [task.network, task.mode, name, spread(speeds, ",.0f"), to_loop, f"{busy:.0f}%", f"{megabytes:,.0f}"]


def main() -> None:
    """Print one table."""
    options = parser(__doc__, repetitions=3, epochs=10)
    options.add_argument("--samples", type=int, default=60_000, help="images, and four times the texts")
    options.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    options.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    given = options.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device here, so that there is nothing to measure")
    os.environ["NVIDIA_TF32_OVERRIDE"] = "1"  # of all processes that are started from here
    samples, epochs = (4_000, 1) if given.quick else (given.samples, given.epochs)
    rows = []
    with ExitStack() as processes:
        contestants = {PLAIN: plain(), "1 worker": ours(1), "2 workers a GPU": ours(2)}
        if torch.cuda.device_count() > 1:
            contestants[DDP] = ddp()
        run = {name: processes.enter_context(contestant) for name, contestant in contestants.items()}
        for network, mode in product(given.networks, given.modes):
            task = Task(network, mode, samples, epochs)
            results: dict[str, list[Outcome]] = {name: [] for name in contestants}
            for _, name in product(range(given.repetitions), contestants):
                results[name].append(run[name](task))
            rows += [row_of(task, name, outcomes, results[PLAIN]) for name, outcomes in results.items()]
            print(*rows[-len(contestants) :], sep="\n", file=sys.stderr)
    to_loop = f"to the plain loop (goal {TARGET})"
    headers = ["network", "mode", "contestant", "samples/s", to_loop, "busy", "peak MB"]
    print_table(torch.cuda.get_device_name(), headers, rows)


if __name__ == "__main__":
    main()
