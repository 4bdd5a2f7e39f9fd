"""Seconds to one worker's accuracy, less half a point, on up to 64 nodes: what is measured, and what computed.

Measured here: how many epochs workers need (fits on the serial engine, in any number of workers), what a sample, a
task and a merge cost (``compss_train.reports.advice`` from a fit of two workers in two processes, with the batches
and rounds of so many), and what a worker sends to a merge. Computed: a round of more workers than two, each on a
node of its own, from these costs and the rate of the nodes' links. The data is on the nodes.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from math import ceil, log2
from pathlib import Path

from _common import NETWORKS, image_source, load_images, network, parser, print_table, threads_of_children
from _learning_cases import Case, base_cases, with_setting
from _learning_results import Result, ResultsFile
from learning import measure

from compss_train import DistributedTrainer, Merge
from compss_train.reports.advice import RoundCost, measured_cost

NODES = [1, 2, 4, 8, 16, 32, 64]
MARKS = 4
ARITY = 8
"""Versions that a task of a merge reads; as in ``advice``."""
COST_SAMPLES = 20_000


def cost_of(case: Case, result: Result) -> RoundCost:
    """Return what a round costs two workers with the batches and merges that were chosen for the case's workers."""
    images, used = load_images(COST_SAMPLES), result.used
    one = {"every": 1, "unit": "epochs", "outer_optimizer": None, "optimizer_state": None}
    merge = Merge(**{name: used.get(name, value) for name, value in one.items()})
    workers = min(2, case.workers)
    with DistributedTrainer(workers, engine="local", seed=0, threads=1) as trainer:
        trainer.build(network(case.network, 0), case.optimizer, "cross_entropy")
        trainer.fit(images.x, images.y, num_epochs=3, batch_size=used["batch_size"], merge=merge, progress=False)
        return measured_cost(trainer.history)


def sent_in_turn(nodes: int) -> int:
    """Return how many versions a node's link carries in turn, up the tree of a merge and down to all nodes."""
    up, left = 0, nodes
    while left > 1:
        up, left = up + min(ARITY, left) - 1, ceil(left / ARITY)
    return up + ceil(log2(nodes))


def row(options: argparse.Namespace, case: Case, result: Result, target: float, alone: float) -> list[str]:
    """Return the cells of a number of nodes; ``alone`` are the seconds of one, or 0 for this row."""
    reached = [epochs for epochs, found in zip(result.epochs, result.accuracies, strict=True) if found >= target]
    if not reached:
        return [str(case.workers), f"not in {case.epochs} epochs: {max(result.accuracies):.2f}%"]
    rounds = result.merges * reached[0] / case.epochs
    cost = replace(cost_of(case, result), samples=case.samples * case.epochs / result.merges)
    training, others = cost.seconds(case.workers, case.workers)
    sent = (result.merge_bytes or 0) * sent_in_turn(case.workers)
    wires = [rounds * 8 * sent / (rate * 1e6) for rate in options.rates]
    seconds = [rounds * (training + others) + wire for wire in wires]
    alone = alone or seconds[0]
    return [
        *(str(case.workers), f"{reached[0]:.2f}", str(result.used["batch_size"]), f"{rounds:.0f}"),
        *(f"{rounds * training:.1f}", f"{rounds * others:.1f}", *(f"{wire:.1f}" for wire in wires)),
        *(f"{each:.1f}" for each in seconds),
        *(f"{alone / each:.1f}" for each in seconds),
    ]


def main() -> None:
    options_parser = parser(__doc__, repetitions=1, epochs=8)
    add = options_parser.add_argument
    add("--samples", type=int, default=60_000, help="training images")
    add("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    add("--nodes", nargs="+", type=int, default=NODES)
    add("--rates", nargs="+", type=float, default=[1_000.0, 10_000.0], help="Mbit/s")
    add("--results", type=Path, default=Path("build/speedup.jsonl"), help="file that accuracies are appended to")
    add("--points", type=float, default=0.5, help="percent below one worker's accuracy at the end")
    options = options_parser.parse_args()
    options.choose, options.engine = False, "serial"
    if options.quick:
        options.epochs, options.samples, options.nodes, options.networks = 2, 3_000, [1, 2, 8], ["MLP"]
    print(f"{image_source()}: {options.samples} of them, {options.epochs} epochs")
    file = ResultsFile(options.results)
    names = [f"{rate:g} Mbit/s" for rate in options.rates]
    headers = ["nodes", "epochs", "batch", "rounds", "s training", "s rounds"]
    headers += [f"{what} {name}" for what in ("s wire", "s", "faster") for name in names]
    with threads_of_children(1):
        for one in map(lambda case: replace(case, marks=MARKS), base_cases(options)):
            cases = [one if nodes == 1 else with_setting(one, "auto", nodes) for nodes in options.nodes]
            measure(cases, file)
            done = file.load()
            target, alone, rows = done[cases[0].key].accuracy - options.points, 0.0, []
            for case in cases:
                rows.append(row(options, case, done[case.key], target, alone))
                alone = alone or (float(rows[0][-2 * len(names)]) if len(rows[0]) > 2 else 0.0)
            width = len(headers)
            rows = [[*each, *["-"] * (width - len(each))] for each in rows]
            print_table(f"{one.network}, seconds to {target:.2f}%", headers, rows)


if __name__ == "__main__":
    main()
