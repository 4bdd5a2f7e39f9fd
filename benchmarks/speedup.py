"""Seconds to one worker's accuracy, less half a point, on up to 64 nodes, beside DDP.

Measured: how many epochs so many workers need, with ``"auto"`` and with gradients averaged in the
same batches, as DDP does (on the serial engine); the processor's seconds of a sample; and what a
merge costs the busiest node, on Ray with 2, 4 and 8 nodes that are network namespaces. Computed: a
fit takes a node, with one core for one worker, the seconds of its samples and merges, and the bytes
of its merges over the rate of its link, one after another. Of DDP a step takes the seconds of its
samples or of the bytes of a ring all-reduce, whichever are more, as if all of them overlapped.

The data is on the nodes. Needs root, for the namespaces, and Ray.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import _common as common
import torch
from _learning_cases import MARKS, SETTINGS, Case, Result, base_cases, with_setting
from _learning_fits import measure
from _merge_costs import MergeCosts, all_reduce, measure_merges
from _nodes import skip_without_network

NODES = [1, 2, 4, 8, 16, 32, 64]
MEASURED_NODES = [2, 4, 8]
COST_SAMPLES = 6_000
"""Samples of a fit whose cost is measured."""
COST_FITS = 3
"""Fits of which the cheapest counts."""
DDP = "gradients averaged"
OF_MERGE = ("outer_optimizer", "optimizer_state", "dtype")
"""The options of ``Merge`` on which the cost of a merge depends."""


@lru_cache
def seconds_of_sample(network: str, batch_size: int) -> float:
    """Return the processor's seconds of a worker for a sample, in batches of this size.

    They are the best of some fits, so that a busy machine does not change them much.
    """
    images = common.load_images(COST_SAMPLES)

    def seconds() -> float:
        net = common.network(network, 0)
        with common.warm_trainer(net, workers=1, engine="serial") as trainer:
            began = time.process_time()
            common.fit(trainer, images.x, images.y, epochs=1, batch_size=batch_size)
            return time.process_time() - began

    return min(seconds() for _ in range(COST_FITS)) / COST_SAMPLES


@dataclass(frozen=True)
class Cost:
    """Seconds of a fit until it has the accuracy, on nodes of one core."""

    epochs: float
    steps: float
    """Merges, or steps of DDP."""
    training: float
    merging: float
    """Of the busiest node's processor."""
    megabytes: float
    """That the busiest node sends or receives for a merge."""
    overlaps: bool = False
    """Whether bytes travel while gradients are computed."""

    def wire(self, rate: float) -> float:
        """Return the seconds in which the bytes travel at a rate in Mbit/s."""
        return self.steps * 8 * self.megabytes / rate

    def total(self, rate: float) -> float:
        """Return all seconds, with links of a rate in Mbit/s."""
        if self.overlaps:
            return max(self.training, self.wire(rate))
        return self.training + self.merging + self.wire(rate)


def cost_of(case: Case, result: Result, target: float, costs: MergeCosts | None) -> Cost | None:
    """Return what a fit costs until it has the accuracy; ``None`` if it does not reach that.

    Without ``costs`` of merges the fit is one of DDP.
    """
    marks = zip(result.epochs, result.accuracies, strict=True)
    reached = next((epochs for epochs, accuracy in marks if accuracy >= target), None)
    if reached is None:
        return None
    steps = result.merges * reached / case.epochs
    samples = case.samples * reached / case.workers
    training = samples * seconds_of_sample(case.network, result.used["batch_size"])
    if costs is None:
        net = common.network(case.network, 0)
        size = sum(parameter.nbytes for parameter in net.parameters()) / 1e6
        sent = all_reduce(size, case.workers)
        return Cost(reached, steps, training, 0.0, sent, overlaps=True)
    busiest = costs.of(case.workers)
    merging = steps * busiest.seconds
    return Cost(reached, steps, training, merging, busiest.megabytes)


class CostsOfMerges:
    """What merges cost, measured once for each network and kind of merge."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self._nodes = nodes
        self._measured: dict[tuple[Any, ...], MergeCosts] = {}

    def of(self, case: Case, result: Result) -> MergeCosts:
        """Return the costs of the merges of a fit."""
        merge = {name: result.used["merge"][name] for name in OF_MERGE}
        kind = (
            case.network,
            merge["outer_optimizer"] is None,
            merge["optimizer_state"],
            merge["dtype"],
        )
        if kind not in self._measured:
            costs = measure_merges(case.network, case.optimizer, merge, self._nodes)
            self._measured[kind] = costs
            rows = [
                [str(cost.nodes), f"{cost.megabytes:.2f}", f"{1_000 * cost.seconds:.0f}"]
                for cost in costs.measured
            ]
            title = f"A merge of {case.network}, {merge}: the busiest node"
            common.print_table(title, ["nodes", "MB", "ms of its processor"], rows)
        return self._measured[kind]


def averaged_gradients(case: Case, result: Result) -> Case:
    """Return the fit of DDP in the batches of another one: all merge after each batch."""
    options = {
        "batch_size": result.used["batch_size"],
        "every": 1,
        "unit": "batches",
        "optimizer_state": "average",
    }
    return replace(case, setting=DDP, options=options)


def print_network(base: Case, options: argparse.Namespace) -> None:
    """Measure the fits of a network, and print a line for each number of nodes."""
    several = [nodes for nodes in options.nodes if nodes > 1]
    cases = [with_setting(base, options.setting, nodes) for nodes in several]
    done = measure([base, *cases], options.results)
    peers = [averaged_gradients(case, done[case.key]) for case in cases]
    done |= measure(peers, options.results)
    target = done[base.key].accuracy - options.points
    costs = CostsOfMerges(options.measured_nodes)
    alone = cost_of(base, done[base.key], target, costs=None)
    if alone is None:
        print(f"{base.network}: one worker has never {target:.2f}%")
        return
    rows = []
    for case, peer in zip(cases, peers, strict=True):
        result = done[case.key]
        cost = cost_of(case, result, target, costs.of(case, result))
        ddp = cost_of(peer, done[peer.key], target, costs=None)
        row = [f"{case.workers}", f"{result.accuracy:.2f}", f"{result.used['batch_size']}"]
        row += cells(cost, alone, options.rates)
        rows.append(row + cells_of_ddp(cost, ddp, alone, options.rates))
    wires = [f"s wire {rate:g} Mbit/s" for rate in options.rates]
    faster = [f"faster {rate:g} Mbit/s" for rate in options.rates]
    headers = ["nodes", "% at the end", "batch", "epochs", "merges", "s training", "s merging"]
    headers += [*wires, *faster, "DDP: epochs"]
    headers += [f"DDP {name}" for name in faster]
    title = f"{base.network}, {options.setting}: seconds to {target:.2f}%"
    common.print_table(f"{title}, {alone.training:.1f} with one node", headers, rows)


def cells(cost: Cost | None, alone: Cost, rates: Sequence[float]) -> list[str]:
    """Return what a fit costs, and how much faster than one node it is at each rate."""
    if cost is None:
        return ["-"] * (4 + 2 * len(rates))
    return [
        f"{cost.epochs:.2f}",
        f"{cost.steps:.0f}",
        f"{cost.training:.1f}",
        f"{cost.merging:.1f}",
        *(f"{cost.wire(rate):.1f}" for rate in rates),
        *(f"{alone.training / cost.total(rate):.1f}" for rate in rates),
    ]


def cells_of_ddp(
    cost: Cost | None, ddp: Cost | None, alone: Cost, rates: Sequence[float]
) -> list[str]:
    """Return how much faster than one node DDP is; ``!`` where it is faster than ours."""
    if ddp is None:
        return ["-"] * (1 + len(rates))
    row = [f"{ddp.epochs:.2f}"]
    for rate in rates:
        is_behind = cost is None or cost.total(rate) > ddp.total(rate)
        row.append(f"{alone.training / ddp.total(rate):.1f}{' !' if is_behind else ''}")
    return row


def main() -> None:
    options_parser = common.parser(__doc__, repetitions=1, epochs=8, samples=60_000)
    add = options_parser.add_argument
    add("--networks", nargs="+", choices=common.ALL_NETWORKS, default=list(common.NETWORKS))
    add("--nodes", nargs="+", type=int, default=NODES)
    add("--measured-nodes", nargs="+", type=int, default=MEASURED_NODES)
    add("--setting", choices=SETTINGS, default="auto", help="how ours merges")
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
        options_parser,
        epochs=2,
        samples=3_000,
        nodes=[1, 2, 8],
        measured_nodes=[2],
        networks=["CNN"],
    )
    skip_without_network()
    print(f"{common.image_source()}; {options.samples} of them, {options.epochs} epochs")
    torch.set_num_threads(1)
    for base in base_cases(options):
        print_network(replace(base, marks=MARKS), options)


if __name__ == "__main__":
    main()
