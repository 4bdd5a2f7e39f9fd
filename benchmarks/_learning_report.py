"""The tables of ``learning``, from the results of cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import TypeAlias

from _common import print_table, ratios, spread
from _learning_cases import AVERAGER, DDP, DILOCO, MERGES, OURS, Case
from _learning_results import Result

Found: TypeAlias = dict[str, Result]
"""Results by the keys of their cases."""
Row: TypeAlias = tuple[Case, dict[int, Result]]
"""A case and its results by seed."""

MOST_BEHIND = {
    ("MLP", "auto", 8): 0.0,
    ("MLP", "auto", 32): 0.2,
    ("MLP", "auto", 64): 0.6,
    ("CNN", "auto", 32): 0.5,
    ("MLP", "commutative", 32): 0.5,
    ("CNN", "commutative", 32): 0.5,
}
"""Goals: points of accuracy behind one worker with the same inner optimizer, at most."""
TARGETS = {"MLP": 88.0, "CNN": 90.0}
"""Accuracies of which the time is compared."""
TIME_GOAL, COST_GOAL, SPEED_GOAL, COMPRESSION_GOAL = 0.6, 1.05, 0.8, 0.1
NOTHING = "-"


def report(name: str, cases: Iterable[Case], found: Found) -> None:
    """Print the tables of a group of cases."""
    by_configuration: dict[str, Row] = {}
    for case in cases:
        row = by_configuration.setdefault(replace(case, seed=0).key, (case, {}))
        if (result := found.get(case.key)) is not None:
            row[1][case.seed] = result
    REPORTS.get(name, report_accuracy)([row for row in by_configuration.values() if row[1]])


def _groups(rows: Sequence[Row], of: Callable[[Case], tuple[str, ...]]) -> dict[tuple[str, ...], list[Row]]:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(of(row[0]), []).append(row)
    return groups


def _network_and_optimizer(case: Case) -> tuple[str, ...]:
    held_out = "held-out training images" if case.choose else "test images"
    return case.network, case.optimizer["optimizer"], held_out


def differences(results: dict[int, Result], others: dict[int, Result]) -> list[float]:
    """Return the differences in accuracy, seed by seed where both were measured."""
    return [results[seed].accuracy - others[seed].accuracy for seed in sorted(results.keys() & others.keys())]


def _accuracies(results: dict[int, Result]) -> str:
    diverged = sum(result.diverged for result in results.values())
    numbers = spread([result.accuracy for result in results.values() if not result.diverged])
    return f"{numbers}, {diverged} of {len(results)} diverged" if diverged else numbers


def _speeds(results: dict[int, Result]) -> list[float]:
    return [result.samples_per_second for result in results.values() if result.samples_per_second is not None]


def _met(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


# -- accuracy against one worker ---------------------------------------------------------------------------


def report_accuracy(rows: Sequence[Row]) -> None:
    """Print the accuracies of settings and workers, and their differences to one worker."""
    for names, group in _groups(rows, _network_and_optimizer).items():
        one = next((results for case, results in group if case.workers == 1), {})
        print_table(
            f"{names[0]}, {names[1]}: accuracy after {group[0][0].epochs} epochs, {names[2]}, %",
            ["setting, workers", "accuracy", "seeds", "less 1 worker", "goal", "", "merges", "samples/s"],
            [_accuracy_row(case, results, one) for case, results in group],
        )


def _accuracy_row(case: Case, results: dict[int, Result], one: dict[int, Result]) -> list[str]:
    behind = differences(results, one) if case.workers > 1 else []
    goal = MOST_BEHIND.get((case.network, case.setting, case.workers))
    goal = None if case.optimizer["optimizer"] == "adam" else goal
    return [
        f"{case.setting}, {case.workers}",
        _accuracies(results),
        str(len(results)),
        spread(behind),
        NOTHING if goal is None else f">= {0 - goal:g}",
        NOTHING if goal is None or not behind else _met(round(median(behind), 2) >= -goal),
        spread(sorted({result.merges for result in results.values()}), ".0f"),
        spread([median(_speeds(results))], ",.0f") if _speeds(results) else NOTHING,
    ]


def report_auto(rows: Sequence[Row]) -> None:
    """Print the same, and the preset "auto" against the plain mean of as many workers."""
    report_accuracy(rows)
    plain = {
        (_network_and_optimizer(case), case.workers): results for case, results in rows if case.setting == "mean"
    }
    pairs = [
        (case, results, plain.get((_network_and_optimizer(case), case.workers), {}))
        for case, results in rows
        if case.setting == "auto"
    ]
    print_table(
        'The preset "auto" less the plain mean once an epoch: not below in the median over seeds, never diverged',
        ["network, optimizer, workers", "difference", "below in", "diverged", "goal"],
        [_auto_row(*pair) for pair in pairs],
    )


def _auto_row(case: Case, results: dict[int, Result], plain: dict[int, Result]) -> list[str]:
    better, diverged = differences(results, plain), sum(result.diverged for result in results.values())
    return [
        f"{case.network}, {case.optimizer['optimizer']}, {case.workers}",
        spread(better),
        f"{sum(points < 0 for points in better)} of {len(better)}",
        str(diverged),
        _met(round(median(better), 2) >= 0 and not diverged) if better else NOTHING,
    ]


def report_compressed(rows: Sequence[Row]) -> None:
    """Print accuracies and bytes of merges in fewer bits."""
    for names, group in _groups(rows, _network_and_optimizer).items():
        _, full = group[0]
        print_table(
            f"{names[0]}: what is sent to a merge, {group[0][0].workers} workers, {names[2]}",
            ["setting", "accuracy", "less 32 bits", "goal", "", "MB a worker and merge"],
            [
                [
                    case.setting,
                    _accuracies(results),
                    spread(behind := differences(results, full)),
                    f">= {-COMPRESSION_GOAL}",
                    _met(round(median(behind), 2) >= -COMPRESSION_GOAL) if behind else NOTHING,
                    spread(sorted({result.merge_bytes / 1e6 for result in results.values() if result.merge_bytes})),
                ]
                for case, results in group
            ],
        )


# -- seconds -----------------------------------------------------------------------------------------------


def report_time(rows: Sequence[Row]) -> None:
    """Print the seconds to the targets: ours and DDP's over the grid, and the best of each."""
    for (network,), group in _groups(rows, lambda case: (case.network,)).items():
        target = TARGETS[network]
        print_table(
            f"{network}: seconds to {target:g}%, 2 workers, schedule {group[0][0].schedule}",
            ["who, batch, lr", "seconds", "reached", "accuracy at the end", "samples/s"],
            [
                [
                    _tried(case),
                    spread([seconds for seconds in _seconds(results, target) if seconds < float("inf")], ".1f"),
                    f"{sum(s < float('inf') for s in _seconds(results, target))} of {len(results)}",
                    _accuracies(results),
                    spread(_speeds(results), ",.0f"),
                ]
                for case, results in group
            ],
        )
        _report_best(group, target)


def _tried(case: Case) -> str:
    who = case.contestant if case.contestant != OURS else f"ours {case.setting}"
    return f"{who}, {case.options['batch_size']}, {case.optimizer['lr']:g}"


def _seconds(results: dict[int, Result], target: float) -> list[float]:
    return [results[seed].seconds_to(target) for seed in sorted(results)]


def _report_best(group: Sequence[Row], target: float) -> None:
    """Print the ratio of the best of both sides: the least median of those that reached the target each time."""
    best: list[Row] = []
    for contestant in (OURS, DDP):
        rows = [
            row for row in group if row[0].contestant == contestant and max(_seconds(row[1], target)) < float("inf")
        ]
        if not rows:
            print(f"{contestant} never reached {target:g}% with all seeds")
            return
        best.append(min(rows, key=lambda row: median(_seconds(row[1], target))))
    (_, ours), (_, ddp) = best
    seeds = ours.keys() & ddp.keys()
    ours, ddp = ({seed: results[seed] for seed in seeds} for results in (ours, ddp))
    against = ratios(_seconds(ours, target), _seconds(ddp, target))
    print(
        f"best of ours ({_tried(best[0][0])}) to DDP's ({_tried(best[1][0])}): {spread(against)}, "
        f"goal <= {TIME_GOAL}: {_met(median(against) <= TIME_GOAL) if against else NOTHING}"
    )


def report_peers(rows: Sequence[Row]) -> None:
    """Print peers and ours with the same options."""
    ours = {_without_contestant(case): results for case, results in rows if case.contestant == OURS}
    print_table(
        f"Peers and ours with the same options: accuracy after {rows[0][0].epochs} epochs, %",
        ["peer, setting, network, workers", "peer", "ours", "ours less peer", "goal", "samples/s, ours to peer"],
        [
            [
                f"{case.contestant}, {case.setting}, {case.network}, {case.workers}",
                _accuracies(results),
                _accuracies(mine := ours.get(_without_contestant(case), {})),
                spread(better := differences(mine, results)),
                _met(round(median(better), 2) >= 0) if better else NOTHING,
                spread(_speed_ratios(mine, results)),
            ]
            for case, results in rows
            if case.contestant in (AVERAGER, DILOCO)
        ],
    )


def _without_contestant(case: Case) -> str:
    return replace(case, contestant=OURS, seed=0).key


def _speed_ratios(results: dict[int, Result], others: dict[int, Result]) -> list[float]:
    pairs = [
        (results[seed].samples_per_second, others[seed].samples_per_second)
        for seed in sorted(results.keys() & others.keys())
    ]
    return [mine / theirs for mine, theirs in pairs if mine and theirs]


def report_cost(rows: Sequence[Row]) -> None:
    """Print the merge with an outer step against that without, and samples/s against the plain mean."""
    lines = []
    for (network,), group in _groups(rows, lambda case: (case.network,)).items():
        plain = next((results for case, results in group if case.setting == "mean"), {})
        for case, results in group:
            if case.setting == "mean":
                continue
            if case.contestant == MERGES:
                value, goal = _merge_ratios(results, plain), f"<= {COST_GOAL}"
                is_met = bool(value) and median(value) <= COST_GOAL
                name = f"merge of {network}, 2 workers: with an outer step to without"
            else:
                value, goal = _speed_ratios(results, plain), f">= {SPEED_GOAL}" if network == "CNN" else NOTHING
                is_met = bool(value) and median(value) >= SPEED_GOAL
                name = f"samples/s of {network}, {case.workers} workers: {case.setting} to mean once an epoch"
            lines.append([name, spread(value, ".3f"), goal, NOTHING if goal == NOTHING else _met(is_met)])
    print_table("Cost", ["measure", "ratio", "goal", ""], lines)
    for case, results in rows:
        seconds = [1000 * median(result.merge_seconds) for result in results.values() if result.merge_seconds]
        if seconds:
            print(f"merge of {case.network}, {case.setting}: {spread(seconds, '.1f')} ms")


def _merge_ratios(results: dict[int, Result], others: dict[int, Result]) -> list[float]:
    seeds = sorted(results.keys() & others.keys())
    return [median(results[seed].merge_seconds) / median(others[seed].merge_seconds) for seed in seeds]


REPORTS: dict[str, Callable[[Sequence[Row]], None]] = {
    "auto": report_auto,
    "compressed": report_compressed,
    "time": report_time,
    "peers": report_peers,
    "cost": report_cost,
}
"""What prints a group; ``report_accuracy`` prints the others."""
