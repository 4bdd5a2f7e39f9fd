"""How much do many workers learn? Accuracies, times to an accuracy, and what merging costs.

Groups of fits run one after another, and each result is appended to a file, so that a measurement
can be stopped and continued, and run in two processes (``--part 0/2`` and ``--part 1/2``).
``--report`` prints the tables of the given groups instead, with the same options as they were
measured with.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median

import _common as common
import torch
from _auto_cells import CELLS, auto_cases, report_auto
from _common import NETWORKS, print_table, ratios, spread
from _learning_cases import (
    MARKS,
    MERGES,
    NESTEROV,
    OPTIMIZERS,
    OURS,
    Case,
    Result,
    base_cases,
    load,
    with_setting,
)
from _learning_fits import measure
from _peers import AVERAGER, DDP, DILOCO, PLAIN

GOALS = {
    ("MLP", "auto", 8): 0.0,
    ("MLP", "auto", 32): 0.2,
    ("MLP", "auto", 64): 0.6,
    ("CNN", "auto", 32): 0.5,
    ("MLP", "commutative", 32): 0.5,
    ("CNN", "commutative", 32): 0.5,
}
"""Points of accuracy behind one worker with SGD, at most."""
TARGETS = {"MLP": 88.0, "CNN": 90.0}
"""Accuracies of which the time is compared."""


# -- groups of cases


def workers_cases(options: argparse.Namespace) -> Iterator[Case]:
    """One worker and a plain loop; more of them with the mean once an epoch, and the preset."""
    for base, optimizer in product(base_cases(options), options.optimizers):
        alone = replace(base, optimizer=OPTIMIZERS[optimizer])
        yield alone
        yield replace(alone, contestant=PLAIN, setting=PLAIN)
        for setting, workers in product(("mean", "auto"), options.workers):
            yield with_setting(alone, setting, workers)


def commutative_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Commutative merging with a quorum, and of each worker alone, 32 workers."""
    for base in base_cases(options):
        yield base
        for setting in ("commutative", "each alone"):
            yield with_setting(base, setting, 32)


def compressed_cases(options: argparse.Namespace) -> Iterator[Case]:
    """What is sent to a merge in 32, 16 and 8 bits, 8 workers."""
    for base in base_cases(options):
        for setting in ("auto", "auto, bf16", "auto, int8"):
            yield with_setting(base, setting, 8)


def time_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Two workers on two cores and DDP, each with all batch sizes and rates of the grid."""
    grid = product(base_cases(options), options.batch_sizes, options.learning_rates)
    for base, batch, rate in grid:
        timed = replace(base, engine="local", marks=MARKS, optimizer={**base.optimizer, "lr": rate})
        for setting in ("auto", "every batch at first"):
            ours = with_setting(timed, setting, 2)
            yield replace(ours, options={**ours.options, "batch_size": batch})
        ddp_options = {"batch_size": batch}
        yield replace(timed, contestant=DDP, setting="DDP", workers=2, options=ddp_options)


def peers_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Peers that merge, and ours with the same options; as many processes as workers."""
    for base, workers in product(base_cases(options), (2, 4)):
        for peer, setting in ((AVERAGER, "plain merges"), (DILOCO, "outer steps")):
            ours = with_setting(base, setting, workers, engine="local")
            yield ours
            yield replace(ours, contestant=peer)


def cost_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Merges of 10 million parameters, also with an outer step, and samples/s of 32 workers."""
    for base in base_cases(options):
        timed = replace(base, engine="local")
        for setting in ("mean", "auto"):
            yield with_setting(timed, setting, 32, epochs=3)
        if base.network == options.networks[0]:
            plain = replace(timed, contestant=MERGES, network="10M", workers=2, samples=4)
            plain = replace(plain, epochs=3 if options.quick else 40, options={"batch_size": 2})
            yield plain
            outer_options = {**plain.options, "outer_optimizer": NESTEROV}
            yield replace(plain, setting="outer", options=outer_options)


def custom_cases(options: argparse.Namespace) -> Iterator[Case]:
    """One worker, and the options of ``fit`` that the command line gives, for choosing settings."""
    for base, optimizer in product(base_cases(options), options.optimizers):
        changes = json.loads(options.optimizer_options)
        alone = replace(base, optimizer={**OPTIMIZERS[optimizer], **changes})
        yield alone
        for text, workers in product(options.options, options.workers):
            yield replace(alone, workers=workers, setting=text, options=json.loads(text))


# -- tables

Row = tuple[Case, dict[int, Result]]
"""A case and its results by seed."""


def of_both(results: dict[int, Result], base: dict[int, Result]) -> list[tuple[Result, Result]]:
    """Return the pairs of results with the same seed."""
    return [(results[seed], base[seed]) for seed in sorted(results.keys() & base.keys())]


def differences(results: dict[int, Result], base: dict[int, Result]) -> list[float]:
    """Return the differences of accuracies with the same seed."""
    return [result.accuracy - of_base.accuracy for result, of_base in of_both(results, base)]


def speed_ratios(results: dict[int, Result], base: dict[int, Result]) -> list[float]:
    """Return the ratios of samples/s with the same seed, where both are known."""
    return [
        result.speed / of_base.speed
        for result, of_base in of_both(results, base)
        if result.speed and of_base.speed
    ]


def speeds(results: dict[int, Result]) -> list[float]:
    return [result.speed for result in results.values() if result.speed is not None]


def accuracies(results: dict[int, Result]) -> str:
    diverged = sum(result.diverged for result in results.values())
    numbers = spread([result.accuracy for result in results.values() if not result.diverged])
    return f"{numbers}, {diverged} of {len(results)} diverged" if diverged else numbers


def in_groups(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield the rows of a network, optimizer and schedule, under a title."""
    groups: dict[str, list[Row]] = {}
    for case, results in rows:
        title = f"{case.network}, {case.optimizer['optimizer']}, {case.schedule} rate"
        groups.setdefault(title, []).append((case, results))
    yield from groups.items()


def report_accuracy(rows: Sequence[Row]) -> None:
    """Print accuracies, and their differences.

    These are to one worker, and to the first setting of as many workers.
    """
    headers = [
        *("setting, workers", "accuracy", "seeds", "less 1 worker", "goal"),
        *("less the first of as many", "merges", "samples/s"),
    ]
    for title, group in in_groups(rows):
        first: dict[int, dict[int, Result]] = {}
        table = []
        for case, results in group:
            base = first.setdefault(case.workers, results)
            less_alone = differences(results, first.get(1, {})) if case.workers > 1 else []
            less_first = differences(results, base) if results is not base else []
            merges = sorted({float(result.merges) for result in results.values()})
            table.append(
                [
                    f"{case.setting}, {case.workers}",
                    accuracies(results),
                    str(len(results)),
                    spread(less_alone),
                    goal_of(case),
                    spread(less_first),
                    spread(merges, ".0f"),
                    spread(speeds(results), ",.0f"),
                ]
            )
        first_case, _ = group[0]
        title = f"{title}: accuracy after {first_case.epochs} epochs, %"
        print_table(title, headers, table)


def goal_of(case: Case) -> str:
    """Return the least difference to one worker, a dash if there is no goal, as with Adam."""
    points = GOALS.get((case.network, case.setting, case.workers))
    if points is None or case.optimizer["optimizer"] == "adam":
        return "-"
    return f">= {0 - points:g}"


def report_time(rows: Sequence[Row]) -> None:
    """Print the seconds to the targets: ours and DDP's over the grid, and the best of each."""
    for title, group in in_groups(rows):
        target = TARGETS[group[0][0].network]
        table = []
        best: dict[str, tuple[float, list[float], str]] = {}
        for case, results in group:
            name = case.setting if case.contestant == OURS else case.contestant
            name = f"{name}, {case.options['batch_size']}, {case.optimizer['lr']:g}"
            seconds = [results[seed].seconds_to(target) for seed in sorted(results)]
            reached = [value for value in seconds if value < math.inf]
            cells = [name, spread(reached, ".1f"), f"{len(reached)} of {len(results)}"]
            table.append([*cells, accuracies(results), spread(speeds(results), ",.0f")])
            if len(reached) == len(seconds):  # the best is one that reached it each time
                rival = best.setdefault(case.contestant, (median(seconds), seconds, name))
                best[case.contestant] = min(rival, (median(seconds), seconds, name))
        headers = ["who, batch, lr", "seconds", "reached", "accuracy at the end", "samples/s"]
        print_table(f"{title}: seconds to {target:g}%, 2 workers", headers, table)
        if len(best) == 2:
            _, seconds, name = best[OURS]
            _, ddp_seconds, ddp_name = best[DDP]
            ratio = spread(ratios(seconds, ddp_seconds))
            print(f"best of ours ({name}) to DDP's ({ddp_name}): {ratio}, goal <= 0.6")


def report_peers(rows: Sequence[Row]) -> None:
    """Print peers and ours with the same options."""
    ours = {replace(case, seed=0).key: results for case, results in rows if case.contestant == OURS}
    table = []
    for case, results in rows:
        if case.contestant == OURS:
            continue
        our_results = ours.get(replace(case, contestant=OURS, seed=0).key, {})
        table.append(
            [
                f"{case.contestant}, {case.setting}, {case.network}, {case.workers}",
                accuracies(results),
                accuracies(our_results),
                spread(differences(our_results, results)),
                spread(speed_ratios(our_results, results)),
            ]
        )
    headers = [
        *("peer, setting, network, workers", "peer", "ours", "ours less peer"),
        "samples/s, ours to peer",
    ]
    title = f"Peers and ours with the same options: accuracy after {rows[0][0].epochs} epochs, %"
    print_table(title, headers, table)


def report_cost(rows: Sequence[Row]) -> None:
    """Print what an outer step adds to a merge, and samples/s against the plain mean."""
    plain = {case.network: results for case, results in rows if case.setting == "mean"}
    table = []
    for case, results in rows:
        base = plain[case.network]
        if case.contestant == MERGES:
            name = f"ms a merge of {case.network}, 2 workers, {case.setting} (goal <= 1.05)"
            values = [1000 * median(result.merge_seconds) for result in results.values()]
            to_mean = [
                median(result.merge_seconds) / median(of_base.merge_seconds)
                for result, of_base in of_both(results, base)
            ]
        else:
            workers = f"{case.workers} workers, {case.setting}"
            name = f"samples/s of {case.network}, {workers} (goal >= 0.8)"
            values = speeds(results)
            to_mean = speed_ratios(results, base)
        table.append([name, spread(values, ",.1f"), spread(to_mean)])
    print_table("Cost", ["measure", "value", "to the plain mean"], table)


GROUPS: dict[
    str, tuple[Callable[[argparse.Namespace], Iterator[Case]], Callable[[Sequence[Row]], None]]
] = {
    "workers": (workers_cases, report_accuracy),
    "commutative": (commutative_cases, report_accuracy),
    "time": (time_cases, report_time),
    "peers": (peers_cases, report_peers),
    "cost": (cost_cases, report_cost),
    "compressed": (compressed_cases, report_accuracy),
    "custom": (custom_cases, report_accuracy),
    "auto": (auto_cases, report_auto),
}
"""Cases, and what prints them."""


# -- the command


def parsed() -> argparse.Namespace:
    """Return the options of the command line."""
    options_parser = common.parser(
        __doc__, repetitions=5, epochs=8, samples=60_000, parts=GROUPS, default=["cost"]
    )
    add = options_parser.add_argument
    add(
        "--results",
        type=Path,
        default=Path("build/learning.jsonl"),
        help="file that results are appended to",
    )
    add("--part", default="0/1", help="which part of the fits, of how many, this process runs")
    add("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    add("--workers", nargs="+", type=int, default=[2, 8, 32, 64])
    add(
        "--optimizers",
        nargs="+",
        choices=OPTIMIZERS,
        default=["sgd"],
        help="of the groups workers and custom",
    )
    add("--schedule", choices=("constant", "cosine"), default="constant")
    add(
        "--engine",
        choices=("serial", "local"),
        default="serial",
        help="of fits whose time does not matter",
    )
    add("--report", nargs="+", type=Path, metavar="FILE", help="print the tables of these files")
    grid = options_parser.add_argument_group("the group time").add_argument
    grid("--batch-sizes", nargs="+", type=int, default=[25, 50, 100])
    grid("--learning-rates", nargs="+", type=float, default=[0.05, 0.1])
    cells = options_parser.add_argument_group("the group auto").add_argument
    cells(
        "--cells", type=int, default=CELLS, help="how many cells of the hypercube, the first ones"
    )
    custom = options_parser.add_argument_group("the group custom").add_argument
    custom("--options", nargs="+", default=[], help="options of fit as JSON, each a setting")
    custom("--optimizer-options", default="{}", help="JSON that replaces options of the optimizer")
    return common.parsed(options_parser, epochs=1, samples=2_400, workers=[2, 8], cells=1)


def main() -> None:
    options = parsed()
    print(f"{common.image_source()}; {options.samples} of them, {options.epochs} epochs")
    if options.report is None:
        torch.set_num_threads(1)
        cases = {case.key: case for name in options.parts for case in GROUPS[name][0](options)}
        # Every m-th, so that parts take about as long.
        number, _, parts = options.part.partition("/")
        measure(list(cases.values())[int(number) :: int(parts)], options.results)
        options.report = [options.results]
    known = {key: result for path in options.report for key, result in load(path).items()}
    for name in options.parts:
        make, report = GROUPS[name]
        rows: dict[str, Row] = {}
        for case in make(options):
            _, results = rows.setdefault(replace(case, seed=0).key, (case, {}))
            if case.key in known:
                results[case.seed] = known[case.key]
        report([(case, results) for case, results in rows.values() if results])


if __name__ == "__main__":
    main()
