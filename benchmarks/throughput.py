"""Samples a second of a fit with 2 workers, against plain PyTorch loops and DistributedDataParallel."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import torch
from _common import NETWORKS, accuracy, image_source, load_images, network, parser, print_table, ratios, spread
from _loops import BATCH, LEARNING_RATE, MOMENTUM, Client, Outcome, Task, run_peer

WORKERS = 2
WARM_UP_SAMPLES = 10_000
LIMIT, DDP, THREADS = "(a) 2 plain loops", "(b) DDP, gloo", "(c) 1 process, 2 threads"
FAST_LIMIT = "(a) in bf16"
OURS, FAST = "ours fp32", "ours bf16"

PEERS = (
    Client(LIMIT, ranks=2),
    Client(DDP, ranks=2, data_parallel=True),
    Client(THREADS, ranks=1, threads=2),
)
TARGETS = {
    "MLP": ((OURS, LIMIT, 0.97), (OURS, DDP, 1.4), (FAST, LIMIT, 1.7)),
    "CNN": ((OURS, LIMIT, 0.97), (OURS, DDP, 1.05), (FAST, LIMIT, 1.7)),
}
ACCURACY_TARGET = 0.3


@dataclass(frozen=True)
class Ours(Outcome):
    """Our outcome, and what of the fit was spent outside the workers' training tasks."""

    outside: float
    """Seconds beside the slowest training task of each round: publishing, merging, transfers, waiting."""
    first_outside: float
    """The first round's part of that, with the publishing of blocks and all else before it."""
    idle: float
    """Share of the workers' time in which they were in no training task."""


Results = dict[str, list[Outcome]]
Contestant = Callable[[Task], Outcome]


def run_ours(task: Task, blocks: tuple[int, int], *, fast: bool) -> Ours:
    """Fit with a warm engine; building the network anew after the warm-up forgets what that trained."""
    from compss_train import BlockedTensor, DistributedTrainer  # not at the top: peers import this module too

    images = load_images(task.samples)
    modes = {"precision": "bf16", "memory_format": "channels_last"} if fast else {}
    with DistributedTrainer(WORKERS, engine="local", seed=task.seed, threads=1) as trainer:
        build = partial(
            trainer.build,
            network(task.network, task.seed),
            {"optimizer": "sgd", "lr": LEARNING_RATE, "momentum": MOMENTUM},
            "cross_entropy",
            **modes,
        )
        build()
        trainer.fit(
            images.x[:WARM_UP_SAMPLES], images.y[:WARM_UP_SAMPLES], num_epochs=2, batch_size=BATCH, progress=False
        )
        build()
        x, y = BlockedTensor.from_array(images.x, blocks), BlockedTensor.from_array(images.y, blocks)
        began = time.perf_counter()
        trainer.fit(x, y, num_epochs=task.epochs, batch_size=BATCH, progress=False)
        seconds = time.perf_counter() - began
        reached = accuracy(trainer.predict(images.test_x), images.test_y)
        return _outcome(task, seconds, reached, trainer.history)


def _outcome(task: Task, seconds: float, reached: float, history: Sequence[dict]) -> Ours:
    slowest = [max(worker["seconds"] for worker in record["workers"]) for record in history]
    inside = sum(worker["seconds"] for record in history for worker in record["workers"])
    later = sum(record["seconds"] for record in history[1:])
    return Ours(
        seconds,
        task.samples * task.epochs / seconds,
        reached,
        outside=seconds - sum(slowest),
        first_outside=seconds - later - slowest[0],
        idle=1 - inside / (WORKERS * seconds),
    )


def contestants(options: argparse.Namespace) -> dict[str, Contestant]:
    """Return who runs in every repetition, by name."""
    peers = [*PEERS, Client(FAST_LIMIT, ranks=2, fast=True)] if options.bf16_limit else PEERS
    blocks = tuple(options.blocks)
    peer_runs = {peer.label: partial(run_peer, peer) for peer in peers}
    # Whoever is compared runs side by side, so that a change of the machine's load between them is rare.
    return {
        FAST: partial(run_ours, blocks=blocks, fast=True),
        LIMIT: peer_runs.pop(LIMIT),
        OURS: partial(run_ours, blocks=blocks, fast=False),
        **peer_runs,
    }


def measure(name: str, options: argparse.Namespace) -> Results:
    """Run all contestants one after another, again and again, so that noise meets all of them."""
    results: Results = {}
    for repetition in range(options.repetitions):
        task = Task(name, options.samples, options.epochs, seed=repetition)
        for label, contestant in contestants(options).items():
            outcome = contestant(task)
            results.setdefault(label, []).append(outcome)
            print(f"{name} {repetition + 1}: {label}: {outcome.samples_per_second:,.0f}/s", file=sys.stderr)
    return results


def speeds(results: Results, label: str) -> list[float]:
    return [outcome.samples_per_second for outcome in results[label]]


def report(name: str, results: Results) -> None:
    """Print one network's tables."""
    rows = []
    for label, outcomes in results.items():
        against = ratios(speeds(results, label), speeds(results, LIMIT))
        reached = fmean(outcome.accuracy for outcome in outcomes)
        rows.append([label, spread(speeds(results, label), ",.0f"), spread(against), f"{reached:.2f}"])
    print_table(f"{name}: samples/s", ["contestant", "samples/s", "of (a)", "mean test accuracy"], rows)
    _report_targets(name, results)
    _report_overhead(name, results)


def _report_targets(name: str, results: Results) -> None:
    rows = [
        [f"{ours} / {peer}", spread(ratios(speeds(results, ours), speeds(results, peer)), ".3f"), f">= {target}"]
        for ours, peer, target in TARGETS[name]
    ]
    pairs = zip(results[FAST], results[OURS], strict=True)
    differences = [fast.accuracy - plain.accuracy for fast, plain in pairs]
    rows.append(["bf16 - fp32, accuracy points", spread(differences), f"within {ACCURACY_TARGET}"])
    rows.append(["  the same, mean over seeds", f"{fmean(differences):.2f}", f"within {ACCURACY_TARGET}"])
    print_table(f"{name}: targets", ["measure", "median (min to max)", "target"], rows)


def _report_overhead(name: str, results: Results) -> None:
    rows = []
    for label in (OURS, FAST):
        ours = [outcome for outcome in results[label] if isinstance(outcome, Ours)]
        share = [100 * outcome.outside / outcome.seconds for outcome in ours]
        rows.append(
            [
                label,
                spread([outcome.seconds for outcome in ours]),
                spread([outcome.outside for outcome in ours]),
                spread([outcome.first_outside for outcome in ours]),
                spread(share, ".1f"),
                spread([100 * outcome.idle for outcome in ours], ".1f"),
            ]
        )
    headers = ["contestant", "fit s", "outside tasks s", "of it in round 1", "outside %", "workers idle %"]
    print_table(f"{name}: our time outside training tasks", headers, rows)


def main() -> None:
    options_parser = parser(__doc__, repetitions=3, epochs=5)
    options_parser.add_argument("--samples", type=int, default=60_000, help="training images")
    options_parser.add_argument("--blocks", type=int, nargs=2, default=[4, 1], help="our grid of blocks")
    options_parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    options_parser.add_argument("--bf16-limit", action="store_true", help="run peer (a) in bf16, too")
    options = options_parser.parse_args()
    if options.quick:
        options.repetitions, options.epochs, options.samples = 1, 2, 4_000
    print(f"{image_source()}: {options.samples} of them, {options.epochs} epochs, {BATCH} a batch")
    print(
        f"torch {torch.__version__}; {WORKERS} workers, a thread each; merged every epoch; "
        f"our blocks {tuple(options.blocks)}"
    )
    for name in options.networks:
        report(name, measure(name, options))


if __name__ == "__main__":
    main()
