"""How fast is training on one machine? Samples/s of whole fits with two workers that have started.

The part ``peers`` compares the local engine with plain PyTorch loops and DistributedDataParallel,
``ray`` with Ray, ``ray_train`` with Ray Train, and ``compss`` with COMPSs and with dislib.pytorch
under it. Whoever is compared runs one after another.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import _applications as applications
import _common as common
import _peers as peers
import _ray_train as ray_train
import torch
from torch import nn

FAST = {"precision": "bf16", "memory_format": "channels_last"}
UNITS = {"ComputingUnits": "1", "ComputingUnitsGPUs": "0"}
"""What dislib's tasks take. A GPU is asked for in its call all the same: else it trains nothing."""

Outcome = dict[str, float]
"""Samples/s, accuracy, and percent of time that workers were busy."""
Contestants = dict[str, Callable[[int], Outcome]]
"""Who runs in every repetition, which is the seed."""


# -- contestants


def ours(
    engine: str, name: str, samples: int, epochs: int, blocks: int, modes: dict[str, Any], seed: int
) -> Outcome:
    """Fit; in an application of its own."""
    images = common.load_images(samples)
    net = common.network(name, seed)
    with common.warm_trainer(net, engine=engine, seed=seed, **modes) as trainer:
        x, y = images.blocked(blocks)
        fitted = common.fit(trainer, x, y, epochs=epochs)
        accuracy = common.accuracy(trainer.predict(images.test_x), images.test_y)
    inside = sum(worker["seconds"] for record in fitted.history for worker in record["workers"])
    busy = 100 * inside / (common.WORKERS * fitted.seconds)
    return {"rate": samples * epochs / fitted.seconds, "accuracy": accuracy, "busy": busy}


def peer(
    ranks: int, threads: int, method: str, name: str, samples: int, epochs: int, seed: int
) -> Outcome:
    """Train in plain loops, each on its part of the samples.

    They are timed from their common start to the last end.
    """
    results = peers.run_ranks(
        run_rank, ranks, threads, method, name, samples, epochs, seed, threads=threads
    )
    began, ended, accuracies = zip(*results, strict=True)
    return {"rate": samples * epochs / (max(ended) - min(began)), "accuracy": fmean(accuracies)}


def run_rank(
    rank: peers.Rank, threads: int, method: str, name: str, samples: int, epochs: int, seed: int
) -> tuple[float, float, float]:
    """Return when the rank began and ended, and its network's test accuracy."""
    torch.set_num_threads(threads)
    images = common.load_images(samples)
    net = common.network(name, seed)
    part = slice(rank.number, None, rank.ranks)
    x = torch.from_numpy(images.x[part].copy())
    y = torch.from_numpy(images.y[part].copy())
    if method != peers.PLAIN:
        rank.join()

    def train(net: nn.Module, batches: int, epochs: int) -> tuple[float, float]:
        optimizer = peers.optimizer_for(net, common.SGD)
        with peers.METHODS[method](peers.Exchange(net, optimizer, rank, 1)) as (wrapped, _):
            peers.meet()
            began = time.perf_counter()
            for _ in range(epochs):
                for rows in torch.randperm(len(x)).split(common.BATCH)[:batches]:
                    batch_x = x.index_select(0, rows)
                    batch_y = y.index_select(0, rows)
                    peers.step(wrapped, optimizer, batch_x, batch_y)
            return began, time.perf_counter()

    train(copy.deepcopy(net), peers.WARM_UP_BATCHES, 1)
    torch.manual_seed(seed * 1000 + rank.number)
    began, ended = train(net, len(x), epochs)
    return began, ended, common.accuracy_of(net, images)


def dislib(name: str, samples: int, epochs: int, blocks: int, copies: bool, seed: int) -> Outcome:
    """Fit as dislib's own tests do.

    Unlike ours, its blocks are in the workers' files before the time starts. ``from_pt_tensor``
    makes a block of a slice, which is pickled with all of the tensor that it is a slice of: then
    every task reads all images. With ``copies`` a task makes a tensor of its own of each block
    first.
    """
    images = common.load_images(samples)
    fit = partial(_fit_dislib, name, images, seed=seed, copies=copies)
    fit(samples=min(samples, 10_000), blocks=common.WORKERS, epochs=2)
    seconds, net = fit(samples=samples, blocks=blocks, epochs=epochs)
    of_block = samples // blocks
    batches = math.ceil(of_block / common.BATCH)
    # It leaves out what is over where samples divide neither into blocks nor blocks into batches.
    trained = blocks * batches * (of_block // batches) * epochs
    return {"rate": trained / seconds, "accuracy": common.accuracy_of(net, images)}


def _fit_dislib(
    name: str,
    images: common.Images,
    *,
    samples: int,
    blocks: int,
    epochs: int,
    seed: int,
    copies: bool,
) -> tuple[float, nn.Module]:
    import dislib as ds
    from dislib.pytorch import EncapsulatedFunctionsDistributedPytorch
    from pycompss.api.api import compss_barrier

    grid = (blocks, 1)
    options = {name: common.SGD[name] for name in ("lr", "momentum")}
    x = ds.from_pt_tensor(torch.from_numpy(images.x[:samples]), shape=grid)
    y = ds.from_pt_tensor(torch.from_numpy(images.y[:samples]), shape=grid)
    if copies:
        x = x.apply_to_tensors(torch.clone)
    trainer = EncapsulatedFunctionsDistributedPytorch(num_workers=common.WORKERS)
    loss = nn.CrossEntropyLoss
    kind = torch.optim.SGD
    trainer.build(Layers(name, seed), kind, loss, options, num_gpu=common.WORKERS, num_nodes=1)
    compss_barrier()
    nets: list[nn.Module] = []
    batches = math.ceil(samples // blocks / common.BATCH)  # as many as ours
    seconds = common.seconds_of(
        lambda: nets.append(trainer.fit_synchronous_with_GPU(x, y, batches, epochs))
    )
    return seconds, nets[0]


class Layers(nn.Module):
    """A network whose layers are where dislib looks for them.

    Workers that get it use a thread, like ours.
    """

    def __init__(self, name: str, seed: int) -> None:
        super().__init__()
        self.neural_network_layers = common.network(name, seed)

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        super().__setstate__(state)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply all layers."""
        outputs: torch.Tensor = self.neural_network_layers(x)
        return outputs


def why_no_dislib(paths: list[str]) -> str:
    """Return the error that importing dislib ends with, nothing where it can be imported.

    Tried outside the runtime, with PyCOMPSs from where ``runcompss`` takes it.
    """
    home = os.environ.get("COMPSS_HOME")
    binding = [str(Path(home, "Bindings/python/3"))] if home else []
    path = os.pathsep.join(filter(None, [*paths, *binding, os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-c", "import dislib.pytorch"]
    variables = {**os.environ, **UNITS, "PYTHONPATH": path}
    tried = subprocess.run(command, cwd=common.HERE, env=variables, capture_output=True, text=True)
    return tried.stderr.strip().splitlines()[-1] if tried.returncode else ""


# -- parts


def report(
    title: str, results: Mapping[str, list[Outcome]], bases: Mapping[str, Callable[[str], str]]
) -> None:
    """Print what each contestant reached, and its ratios to others.

    ``bases`` has a header for each column of ratios, and tells whom a contestant is compared with.
    """

    def column(label: str, name: str) -> list[float]:
        return [outcome[name] for outcome in results.get(label, []) if name in outcome]

    rows = []
    for label in results:
        rates = column(label, "rate")
        cells = [label, common.spread(rates, ",.0f")]
        for base_of in bases.values():
            base = column(base_of(label), "rate")
            cells.append(common.spread(common.ratios(rates, base), ".2f") if base else "-")
        cells.append(f"{fmean(column(label, 'accuracy')):.2f}")
        cells.append(common.spread(column(label, "busy"), ".1f"))
        rows.append(cells)
    headers = ["contestant", "samples/s", *bases, "mean test accuracy", "workers busy %"]
    common.print_table(title, headers, rows)


def report_peers(options: argparse.Namespace) -> None:
    limit = "2 plain loops"
    ddp = "DDP, gloo"
    plainly = "ours, fp32"
    for name in options.networks:
        task: tuple[Any, ...] = (name, options.samples, options.epochs)
        contestants: Contestants = {
            "ours, bf16, channels_last": partial(
                applications.call, ours, "local", *task, options.grid, FAST
            ),
            limit: partial(peer, 2, 1, peers.PLAIN, *task),
            plainly: partial(applications.call, ours, "local", *task, options.grid, {}),
            ddp: partial(peer, 2, 1, peers.DDP, *task),
            "1 process, 2 threads": partial(peer, 1, 2, peers.PLAIN, *task),
        }
        goals = {
            f"to {limit} (goal 0.97)": limit,
            f"to {ddp} (goal {1.4 if name == 'MLP' else 1.05})": ddp,
        }
        bases = {header: lambda _, label=label: label for header, label in goals.items()}
        results = common.in_turn(contestants, options.repetitions)
        report(f"{name}: local engine and peers", results, bases)


def report_ray(options: argparse.Namespace) -> None:
    for name in options.networks:
        task: tuple[Any, ...] = (name, options.samples, options.epochs, options.grid, {})
        contestants: Contestants = {
            engine: partial(applications.call, ours, engine, *task) for engine in ("local", "ray")
        }
        bases: dict[str, Callable[[str], str]] = {"to local (goal 0.95)": lambda _: "local"}
        report(f"{name}: on Ray", common.in_turn(contestants, options.repetitions), bases)


def report_ray_train(options: argparse.Namespace) -> None:
    """Print what the same training costs with Ray Train, also if a worker is killed."""
    task = (options.samples, options.epochs)
    contestants: Contestants = {
        f"{program}, {kills} kills": partial(
            applications.call, ray_train.measured, program, *task, kills
        )
        for program in ray_train.PROGRAMS
        for kills in (0, 1)
    }
    results = common.in_turn(contestants, options.repetitions)
    rows = []
    for program in ray_train.PROGRAMS:
        whole = results[f"{program}, 0 kills"]
        killed = results[f"{program}, 1 kills"]
        costs = [
            with_kill["training"] - without["training"]
            for with_kill, without in zip(killed, whole, strict=True)
        ]
        rows.append(
            [
                program,
                common.spread([outcome["rate"] for outcome in whole], ",.0f"),
                common.spread([outcome["first step"] for outcome in whole], ".1f"),
                common.spread(costs, ".1f"),
                str(ray_train.lines_of(program)),
                f"{fmean(outcome['accuracy'] for outcome in whole):.2f}",
            ]
        )
    our_rates, their_rates = (
        [outcome["rate"] for outcome in results[f"{program}, 0 kills"]]
        for program in ray_train.PROGRAMS
    )
    headers = [
        *("MLP", "samples/s", "seconds to the first step", "seconds that a kill -9 costs"),
        *("lines of the program", "mean test accuracy"),
    ]
    common.print_table("MLP: beside Ray Train, gloo", headers, rows)
    ratios = common.spread(common.ratios(our_rates, their_rates))
    print(f"samples/s to Ray Train's (goal 1.3): {ratios}")


def report_compss(options: argparse.Namespace) -> None:
    if not applications.has_compss():
        return
    paths = [str(folder.absolute()) for folder in options.dislib]
    reason = why_no_dislib(paths)
    if reason:
        print(
            f"SKIPPED: dislib cannot be imported ({reason}); name a checkout with --dislib FOLDER"
        )
    task: tuple[Any, ...] = ("MLP", options.samples, options.epochs)
    local = f"local, {options.blocks[0]} blocks"
    contestants: Contestants = {
        local: partial(applications.call, ours, "local", *task, options.blocks[0], {})
    }
    runtime = applications.Runtime()
    runtime_of_dislib = applications.Runtime(pythonpath=paths, environment=UNITS)
    for blocks in options.blocks:
        contestants[f"compss, {blocks} blocks"] = partial(
            applications.call, ours, "compss", *task, blocks, {}, runtime=runtime
        )
        if not reason:
            contestants[f"dislib, {blocks} blocks"] = partial(
                applications.call, dislib, *task, blocks, options.copies, runtime=runtime_of_dislib
            )
    bases: dict[str, Callable[[str], str]] = {
        "to local": lambda _: local,
        "to dislib (goals 1.35 with 8 blocks, 4.5 with 64)": (
            lambda label: label.replace("compss", "dislib")
        ),
    }
    report("MLP under COMPSs", common.in_turn(contestants, options.repetitions), bases)


PARTS = {
    "peers": report_peers,
    "ray": report_ray,
    "ray_train": report_ray_train,
    "compss": report_compss,
}


def main() -> None:
    options_parser = common.parser(__doc__, repetitions=3, epochs=5, samples=60_000, parts=PARTS)
    add = options_parser.add_argument
    add("--networks", nargs="+", choices=common.NETWORKS, default=list(common.NETWORKS))
    add("--grid", type=int, default=4, help="our blocks in the parts peers and ray")
    add("--blocks", type=int, nargs="+", default=[8, 64], help="of the images, in the part compss")
    add(
        "--dislib",
        type=Path,
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="its checkout and what it needs",
    )
    add(
        "--copies",
        action="store_true",
        help="make each of dislib's blocks a tensor of its own before the fit",
    )
    # A task of dislib's takes half a second, however small: 64 blocks are not quick.
    options = common.parsed(options_parser, epochs=2, samples=6_400, blocks=[2, 8])
    print(
        f"{common.image_source()}; {options.samples} of them, {options.epochs} epochs, merged "
        "every epoch"
    )
    for part in options.parts:
        PARTS[part](options)


if __name__ == "__main__":
    main()
