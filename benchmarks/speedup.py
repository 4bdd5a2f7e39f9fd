"""Seconds to one worker's accuracy, less half a point, on up to 64 nodes.

Measured: how many epochs so many workers need (on the serial engine), what a sample costs a
processor, and what a task and a merge cost two workers in two processes, with the batches and
rounds of so many. Computed, with the model of ``compss-train advise``: a round of all workers, each
on a node of its own, and what links of some rates add. The data is on the nodes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, log2
from pathlib import Path
from typing import Any

import _common as common
import torch
from _learning_cases import MARKS, Case, Result, base_cases, with_setting
from _learning_fits import measure

from compss_train import Merge
from compss_train.reports.advice import RoundCost, measured_cost

NODES = [1, 2, 4, 8, 16, 32, 64]
ARITY = 8
"""Versions that a task of a merge reads; as in ``advice``."""
COST_SAMPLES = 6_000
"""Samples of a fit whose cost is measured."""
COST_FITS = 3
"""Fits of which the cheapest counts."""


def cost_of(case: Case, used: Mapping[str, Any]) -> RoundCost:
    """Return what a round costs two workers with the options of a fit of the case's workers.

    Seconds of a sample are those of the processor, and those of a round the best of some fits, so
    that a busy machine does not change them much.
    """
    images = common.load_images(COST_SAMPLES)
    names = ("every", "unit", "outer_optimizer", "optimizer_state")
    merge = Merge(**{name: used["merge"][name] for name in names})
    net = common.network(case.network, 0)
    workers = min(2, case.workers)

    def cost(engine: str, epochs: int) -> tuple[float, RoundCost]:
        with common.warm_trainer(net, case.optimizer, workers=workers, engine=engine) as trainer:
            began = time.process_time()
            options = {"batch_size": used["batch_size"], "merge": merge}
            common.fit(trainer, images.x, images.y, epochs=epochs, **options)
            return time.process_time() - began, measured_cost(trainer.history)

    seconds = min(cost("serial", 1)[0] for _ in range(COST_FITS))
    costs = [cost("local", 3)[1] for _ in range(COST_FITS)]
    cheapest = min(costs, key=lambda of_round: of_round.merge + of_round.task)
    return replace(cheapest, sample=seconds / COST_SAMPLES)


def sent_in_turn(nodes: int) -> int:
    """Return how many versions a node's link carries in turn.

    They go up the tree of a merge, and down to all nodes.
    """
    up = 0
    sums = nodes
    while sums > 1:
        up += min(ARITY, sums) - 1
        sums = ceil(sums / ARITY)
    return up + ceil(log2(nodes))


def seconds_of(case: Case, result: Result, target: float, rates: Sequence[float]) -> list[float]:
    """Return the rounds to the accuracy, and their seconds: training, all else, on the wire.

    Those on the wire are at each rate. Empty if the accuracy is not reached.
    """
    marks = zip(result.epochs, result.accuracies, strict=True)
    reached = next((epochs for epochs, accuracy in marks if accuracy >= target), None)
    if reached is None:
        return []
    rounds = result.merges * reached / case.epochs
    cost = replace(cost_of(case, result.used), samples=case.samples * case.epochs / result.merges)
    training, not_training = cost.seconds(case.workers, case.workers)
    net = common.network(case.network, 0)
    version = 4 * sum(tensor.numel() for tensor in net.state_dict().values())
    if result.used["merge"]["optimizer_state"] == "average":
        version *= 2  # momentum is as large as the parameters
    sent = version * sent_in_turn(case.workers)
    wires = [8 * sent / (rate * 1e6) for rate in rates]
    return [rounds, *(rounds * seconds for seconds in (training, not_training, *wires))]


def print_nodes(
    cases: Sequence[Case], done: Mapping[str, Result], options: argparse.Namespace
) -> None:
    """Print a line for each number of nodes; the first is that of one node."""
    target = done[cases[0].key].accuracy - options.points
    alone = 0.0
    rows = []
    for case in cases:
        result = done[case.key]
        cells = [str(case.workers), f"{result.accuracy:.2f}", str(result.used["batch_size"])]
        costs = seconds_of(case, result, target, options.rates)
        if costs:
            rounds, training, not_training, *wires = costs
            alone = alone or training + not_training
            totals = [training + not_training + wire for wire in wires]
            epochs = rounds * case.epochs / result.merges
            cells += [f"{epochs:.2f}", f"{rounds:.0f}", f"{training:.1f}", f"{not_training:.1f}"]
            cells += [f"{seconds:.1f}" for seconds in (*wires, *totals)]
            cells += [f"{alone / seconds:.1f}" for seconds in totals]
        rows.append(cells + ["-"] * (7 + 3 * len(options.rates) - len(cells)))
    names = [f"{rate:g} Mbit/s" for rate in options.rates]
    headers = ["nodes", "% at the end", "batch", "epochs", "rounds", "s training", "s rounds"]
    headers += [f"{what} {name}" for what in ("s wire", "s", "faster") for name in names]
    common.print_table(f"{cases[0].network}, seconds to {target:.2f}%", headers, rows)


def main() -> None:
    options_parser = common.parser(__doc__, repetitions=1, epochs=8, samples=60_000)
    add = options_parser.add_argument
    add("--networks", nargs="+", choices=common.NETWORKS, default=list(common.NETWORKS))
    add("--nodes", nargs="+", type=int, default=NODES)
    add("--rates", nargs="+", type=float, default=[1_000.0, 10_000.0], help="Mbit/s")
    add(
        "--results",
        type=Path,
        default=Path("build/speedup.jsonl"),
        help="file that accuracies are appended to",
    )
    add("--points", type=float, default=0.5, help="percent below one worker's accuracy at the end")
    options_parser.set_defaults(engine="serial", schedule="constant")
    options = common.parsed(
        options_parser, epochs=2, samples=3_000, nodes=[1, 2, 8], networks=["MLP"]
    )
    print(f"{common.image_source()}; {options.samples} of them, {options.epochs} epochs")
    torch.set_num_threads(1)
    for base in base_cases(options):
        alone = replace(base, marks=MARKS)
        cases = [alone]
        cases += [with_setting(alone, "auto", nodes) for nodes in options.nodes if nodes > 1]
        print_nodes(cases, measure(cases, options.results), options)


if __name__ == "__main__":
    main()
