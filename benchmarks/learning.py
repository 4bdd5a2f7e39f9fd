"""How much do many workers learn? Accuracies after some epochs, times to an accuracy, and what
merging costs.

Groups of fits run one after another, and each result is appended to a file, so that a measurement
can be stopped and continued, and run in two processes (``--part 0/2`` and ``--part 1/2``).
``--report`` prints the tables of the given groups instead, with the same options as they were
measured with.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import _common as common
import numpy as np
import torch
from _common import (
    AVERAGER,
    DDP,
    DILOCO,
    NETWORKS,
    PEERS,
    PLAIN,
    SGD,
    Images,
    print_table,
    ratios,
    spread,
)
from numpy.typing import NDArray
from torch import distributed, nn

NESTEROV = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
"""The outer optimizer of DiLoCo (Douillard et al. 2023)."""
OPTIMIZERS: dict[str, dict[str, Any]] = {"sgd": SGD, "adam": {"optimizer": "adam", "lr": 0.001}}
_EVERY_75 = {"batch_size": 100, "every": 75, "unit": "batches"}
SETTINGS: dict[str, dict[str, Any]] = {
    "mean": {"batch_size": 100},
    "auto": {"merge": "auto"},
    "commutative": {"merge": "auto", "quorum": 0.75},
    "each alone": {
        "batch_size": 25,
        "merge": "commutative",
        "every": 9,
        "unit": "batches",
        "quorum": 0,
    },
    "plain merges": _EVERY_75,
    "every batch at first": {"merge": "post_local", "optimizer_state": "average"},
    "outer steps": {**_EVERY_75, "outer_optimizer": NESTEROV},
    "auto, bf16": {"merge": "auto", "dtype": "bf16"},
    "auto, int8": {"merge": "auto", "dtype": "int8"},
}
"""Options of ``fit`` and its ``Merge`` by name; ``mean``, once an epoch, is the baseline with one
worker.
"""
OURS = "ours"
MERGES = "ours, merges"
"""Who trains, beside the peers. ``MERGES`` has a wide network and hardly any samples: only merging
takes time.
"""
MARKS = 4
"""Accuracies an epoch where times to an accuracy are compared."""
CHANCE = 15.0
"""A network below this percentage has learnt nothing of ten classes: it has diverged, whether or
not to NaN.
"""
FIRST_MERGES = 3
"""Merges that are not measured."""

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

State = Mapping[str, Any]


# -- cases and results
# -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    """One fit; equal cases are measured once, also if several groups have them."""

    network: str
    workers: int
    setting: str
    options: dict[str, Any]
    """Of ``fit`` and its ``Merge``; peers follow ``batch_size``, ``every`` and
    ``outer_optimizer``.
    """
    optimizer: dict[str, Any] = field(default_factory=SGD.copy)
    seed: int = 0
    epochs: int = 8
    samples: int = 60_000
    schedule: str = "constant"
    engine: str = "serial"
    contestant: str = OURS
    marks: int = 1
    """Accuracies an epoch."""

    @property
    def key(self) -> str:
        """The case as JSON, by which its result is found."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def label(self) -> str:
        """A short name for people."""
        rate = f"{self.optimizer['optimizer']} {self.optimizer['lr']:g}"
        who = self.contestant
        return (
            f"{who}, {self.network}, {rate}, {self.workers} workers, {self.setting}, seed "
            f"{self.seed}"
        )

    def images(self) -> Images:
        """Return the images."""
        return _images(self.samples)

    def rate_of(self) -> Callable[[int], float] | None:
        """Return the factor of the learning rate by epoch: a cosine falls from 1 to nearly 0."""
        return partial(cosine, epochs=self.epochs) if self.schedule == "cosine" else None


_images = lru_cache(maxsize=2)(common.load_images)


def cosine(epoch: int, *, epochs: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * epoch / epochs))


@dataclass(kw_only=True)
class Result:
    """The accuracies in percent at the marks of a fit, and what they cost."""

    accuracies: list[float] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)
    """Epochs that had been trained at each mark."""
    seconds: list[float] = field(default_factory=list)
    """Since the fit began; evaluation does not count."""
    merges: int = 0
    diverged: bool = False
    speed: float | None = None
    """Samples a second after the first mark."""
    merge_seconds: list[float] = field(default_factory=list)
    """Of each merge, where nothing else is measured."""
    used: dict[str, Any] = field(default_factory=dict)
    """The options of the fit as ``trainer.configuration`` describes them."""

    @property
    def accuracy(self) -> float:
        """In percent at the end; 0 for a fit that diverged."""
        return 0.0 if self.diverged or not self.accuracies else self.accuracies[-1]

    def seconds_to(self, target: float) -> float:
        """Return the seconds until the first mark with the accuracy, infinity if there is none."""
        marks = zip(self.seconds, self.accuracies, strict=True)
        return next((seconds for seconds, reached in marks if reached >= target), math.inf)


class Marks:
    """States of the network during a fit, which are evaluated after it."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._began = time.perf_counter()
        self._kept: list[tuple[float, float, State]] = []

    def pass_by(self, epochs: float, state: Callable[[], State]) -> None:
        """Keep the state if a mark has been passed since the last one that was kept."""
        marks = self._case.marks
        done = self._kept[-1][0] if self._kept else 0.0
        if int(epochs * marks + 1e-6) > int(done * marks + 1e-6):
            self._kept.append((epochs, time.perf_counter() - self._began, state()))

    def result(self, **more: Any) -> Result:
        """Evaluate the states."""
        images = self._case.images()
        result = Result(**more)
        net = common.network(self._case.network, self._case.seed)
        for epochs, seconds, state in self._kept:
            net.load_state_dict(
                {name: torch.from_numpy(np.array(array)) for name, array in state.items()}
            )
            result.accuracies.append(common.accuracy_of(net, images))
            result.epochs.append(epochs)
            result.seconds.append(seconds)
        result.diverged |= not result.accuracies or not result.accuracies[-1] > CHANCE
        if len(self._kept) > 1:
            (first, began, _) = self._kept[0]
            (last, ended, _) = self._kept[-1]
            result.speed = (last - first) * len(images.x) / (ended - began)
        return result


def load(path: Path) -> dict[str, Result]:
    """Return the results in a file of JSON lines by the keys of their cases; of repeated cases the
    last.
    """
    found = {}
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        try:
            entry = json.loads(line)
            found[Case(**entry["case"]).key] = Result(**entry["result"])
        except (ValueError, TypeError, KeyError):
            print(
                f"{path}: line {number} is no result, as of a killed process; skipped",
                file=sys.stderr,
            )
    return found


def append(path: Path, case: Case, result: Result) -> None:
    """Write a line, after a line break in case a killed process has left half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    started = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a") as file:
        file.write(
            "\n" * started + json.dumps({"case": asdict(case), "result": asdict(result)}) + "\n"
        )


# -- groups of cases
# ---------------------------------------------------------------------------------------


def base_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Yield the baseline, one worker with batches of 100, seed by seed for each network."""
    names = ("epochs", "samples", "engine", "schedule")
    given = {name: getattr(options, name) for name in names}
    for seed, network in product(range(options.repetitions), options.networks):
        yield Case(
            network=network, workers=1, setting="mean", options=SETTINGS["mean"], seed=seed, **given
        )


def with_setting(case: Case, name: str, workers: int, **more: Any) -> Case:
    """Return the case with other options of ``fit``, by the name of a setting."""
    return replace(case, setting=name, options=SETTINGS[name], workers=workers, **more)


def workers_cases(options: argparse.Namespace) -> Iterator[Case]:
    """One worker and a plain loop; the plain mean once an epoch and the preset with more of
    them.
    """
    for base, optimizer in product(base_cases(options), options.optimizers):
        one = replace(base, optimizer=OPTIMIZERS[optimizer])
        yield one
        yield replace(one, contestant=PLAIN, setting=PLAIN)
        for setting, workers in product(("mean", "auto"), options.workers):
            yield with_setting(one, setting, workers)


def commutative_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Commutative merging with a quorum, and of each worker alone, 32 workers."""
    for one in base_cases(options):
        yield one
        for setting in ("commutative", "each alone"):
            yield with_setting(one, setting, 32)


def compressed_cases(options: argparse.Namespace) -> Iterator[Case]:
    """What is sent to a merge in 32, 16 and 8 bits, 8 workers."""
    for one in base_cases(options):
        for setting in ("auto", "auto, bf16", "auto, int8"):
            yield with_setting(one, setting, 8)


def time_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Two workers on two cores and DDP, each with all batch sizes and learning rates of the
    grid.
    """
    for one, batch, rate in product(
        base_cases(options), options.batch_sizes, options.learning_rates
    ):
        tried = replace(one, engine="local", marks=MARKS, optimizer={**one.optimizer, "lr": rate})
        for setting in ("auto", "every batch at first"):
            ours = with_setting(tried, setting, 2)
            yield replace(ours, options={**ours.options, "batch_size": batch})
        yield replace(
            tried, contestant=DDP, setting="DDP", workers=2, options={"batch_size": batch}
        )


def peers_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Peers that merge, and ours with the same options; as many processes as workers."""
    for one, workers in product(base_cases(options), (2, 4)):
        for peer, setting in ((AVERAGER, "plain merges"), (DILOCO, "outer steps")):
            ours = with_setting(one, setting, workers, engine="local")
            yield ours
            yield replace(ours, contestant=peer)


def cost_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Merges of 10 million parameters with and without an outer step, and samples/s with 32
    workers.
    """
    for one in base_cases(options):
        timed = replace(one, engine="local")
        for setting in ("mean", "auto"):
            yield with_setting(timed, setting, 32, epochs=3)
        if one.network == options.networks[0]:
            plain = replace(timed, contestant=MERGES, network="10M", workers=2, samples=4)
            plain = replace(plain, epochs=3 if options.quick else 40, options={"batch_size": 2})
            yield plain
            yield replace(
                plain, setting="outer", options={**plain.options, "outer_optimizer": NESTEROV}
            )


def custom_cases(options: argparse.Namespace) -> Iterator[Case]:
    """One worker, and the options of ``fit`` that the command line gives, for choosing settings."""
    for base, optimizer in product(base_cases(options), options.optimizers):
        one = replace(
            base, optimizer={**OPTIMIZERS[optimizer], **(json.loads(options.optimizer_options))}
        )
        yield one
        for text, workers in product(options.options, options.workers):
            yield replace(one, workers=workers, setting=text, options=json.loads(text))


# -- fits of ours and of peers
# -----------------------------------------------------------------------------


def run(case: Case) -> Result:
    """Run one case."""
    if case.contestant == MERGES:
        return run_merges(case)
    if case.contestant == OURS:
        return run_ours(case)
    result = common.run_ranks(run_rank, case.workers, case)[0]
    return result or Result()


def run_ours(case: Case) -> Result:
    """Fit, and evaluate at the marks. Processes are started and warm before the time begins."""
    from compss_train.callbacks import Callback
    from compss_train.exceptions import DivergedError

    images = case.images()

    class KeepMarks(Callback):
        trained = 0

        def on_round_end(self, trainer: Any, record: dict[str, Any]) -> None:
            self.trained += record["samples"]
            marks.pass_by(self.trained / len(images.x), trainer.get_parameters)

    net = common.network(case.network, case.seed)
    where: dict[str, Any] = {"workers": case.workers, "engine": case.engine, "seed": case.seed}
    with common.warm_trainer(net, case.optimizer, schedule=case.rate_of(), **where) as trainer:
        marks = Marks(case)
        diverged = False
        try:
            _fit(trainer, case, images.x, images.y, KeepMarks())
        except DivergedError:
            diverged = True
        used = dict(trainer.configuration["fit"] or {})
        return marks.result(merges=len(trainer.history), diverged=diverged, used=used)


def _fit(trainer: Any, case: Case, x: Any, y: Any, *callbacks: Any) -> None:
    """Fit with the options of the case; all samples are shuffled, so that the shares of workers are
    alike.
    """
    from compss_train import Merge

    options = dict(case.options)
    chosen = {each.name: options.pop(each.name) for each in fields(Merge) if each.name in options}
    options["merge"] = Merge(options.get("merge"), **chosen)
    trainer.fit(
        x,
        y,
        num_epochs=case.epochs,
        shuffle="total",
        callbacks=callbacks,
        progress=False,
        **options,
    )


def run_merges(case: Case) -> Result:
    """Measure merges of two workers that train a network of 10 million parameters on one batch a
    round.
    """
    from compss_train import DistributedTrainer
    from compss_train.reports.timeline import totals, worker_intervals

    x = np.zeros((case.samples, 1000), np.float32)
    y = np.zeros(case.samples, np.int64)
    with DistributedTrainer(case.workers, engine=case.engine, seed=case.seed, threads=1) as trainer:
        wide = nn.Sequential(nn.Linear(1000, 3330), nn.ReLU(), nn.Linear(3330, 2000))
        trainer.build(wide, case.optimizer, "cross_entropy")
        _fit(trainer, case, x, y)
        seconds = totals(worker_intervals(trainer.history))
        # The last one waits for the end, too.
        rounds = range(min(FIRST_MERGES, case.epochs - 2), case.epochs - 1)
        merging = [seconds[position, 0]["merging"] for position in rounds]
        return Result(merges=len(trainer.history), merge_seconds=merging)


def run_rank(rank: common.Rank, case: Case) -> Result | None:
    """Train as a rank of a peer, on its share of each epoch's permutation; the first one has a
    result.
    """
    torch.set_num_threads(1)
    images = case.images()
    net = common.network(case.network, case.seed)
    batch = case.options["batch_size"]
    x = torch.from_numpy(images.x)
    y = torch.from_numpy(images.y)
    common.warm_up(net, case.optimizer, x[:batch], y[:batch])
    period = case.options.get("every", 1)
    steps = len(rank.shares(len(x), 0, case.seed, batch))

    def state() -> dict[str, NDArray[Any]]:
        """Return the mean state of all ranks, as ours evaluates; what the ranks train stays as it
        is.
        """
        found = {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}
        for tensor in found.values():
            if case.contestant in common.MERGING and tensor.is_floating_point():
                distributed.all_reduce(tensor)
                tensor /= case.workers
        return {name: tensor.numpy() for name, tensor in found.items()}

    if case.contestant != PLAIN:
        rank.join()
    optimizer = common.optimizer_for(net, case.optimizer)
    with common.METHODS[case.contestant](common.Exchange(net, optimizer, rank, period)) as (
        wrapped,
        after_step,
    ):
        schedule = case.rate_of() or (lambda epoch: 1.0)
        lr = case.optimizer["lr"]
        common.meet()
        marks = Marks(case)
        for epoch in range(case.epochs):
            for group in optimizer.param_groups:
                group["lr"] = lr * schedule(epoch)
            for number, rows in enumerate(rank.shares(len(x), epoch, case.seed, batch), 1):
                common.step(wrapped, optimizer, x.index_select(0, rows), y.index_select(0, rows))
                after_step()
                marks.pass_by(epoch + number / steps, state)
        common.meet()
    return marks.result(merges=case.epochs * steps // period) if rank.number == 0 else None


# -- tables
# ------------------------------------------------------------------------------------------------

Row = tuple[Case, dict[int, Result]]
"""A case and its results by seed."""


def of_both(ours: dict[int, Result], others: dict[int, Result]) -> list[tuple[Result, Result]]:
    """Return the pairs of results with the same seed."""
    return [(ours[seed], others[seed]) for seed in sorted(ours.keys() & others.keys())]


def differences(ours: dict[int, Result], others: dict[int, Result]) -> list[float]:
    return [mine.accuracy - other.accuracy for mine, other in of_both(ours, others)]


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
    """Print accuracies, and their differences to one worker and to the first setting of as many
    workers.
    """
    for title, group in in_groups(rows):
        first: dict[int, dict[int, Result]] = {}
        table = []
        for case, results in group:
            base = first.setdefault(case.workers, results)
            goal = GOALS.get((case.network, case.setting, case.workers))
            goal = None if case.optimizer["optimizer"] == "adam" else goal
            table.append(
                [
                    f"{case.setting}, {case.workers}",
                    accuracies(results),
                    str(len(results)),
                    spread(differences(results, first.get(1, {})) if case.workers > 1 else []),
                    "-" if goal is None else f">= {0 - goal:g}",
                    spread(differences(results, base) if results is not base else []),
                    spread(sorted({float(result.merges) for result in results.values()}), ".0f"),
                    spread(speeds(results), ",.0f"),
                ]
            )
        headers = [
            "setting, workers",
            "accuracy",
            "seeds",
            "less 1 worker",
            "goal",
            "less the first of as many",
        ]
        title = f"{title}: accuracy after {group[0][0].epochs} epochs, %"
        print_table(title, [*headers, "merges", "samples/s"], table)


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
            reached = [each for each in seconds if each < math.inf]
            cells = [name, spread(reached, ".1f"), f"{len(reached)} of {len(results)}"]
            table.append([*cells, accuracies(results), spread(speeds(results), ",.0f")])
            # The least median of those that reached the target each time.
            if len(reached) == len(seconds):
                rival = best.setdefault(case.contestant, (median(seconds), seconds, name))
                best[case.contestant] = min(rival, (median(seconds), seconds, name))
        headers = ["who, batch, lr", "seconds", "reached", "accuracy at the end", "samples/s"]
        print_table(f"{title}: seconds to {target:g}%, 2 workers", headers, table)
        if len(best) == 2:
            (_, ours, name) = best[OURS]
            (_, ddp, peer) = best[DDP]
            print(
                f"best of ours ({name}) to DDP's ({peer}): {spread(ratios(ours, ddp))}, goal <= 0.6"
            )


def report_peers(rows: Sequence[Row]) -> None:
    """Print peers and ours with the same options."""
    ours = {replace(case, seed=0).key: results for case, results in rows if case.contestant == OURS}
    table = []
    for case, results in rows:
        if case.contestant == OURS:
            continue
        mine = ours.get(replace(case, contestant=OURS, seed=0).key, {})
        faster = [
            own.speed / other.speed
            for own, other in of_both(mine, results)
            if own.speed and other.speed
        ]
        name = f"{case.contestant}, {case.setting}, {case.network}, {case.workers}"
        found = [
            accuracies(results),
            accuracies(mine),
            spread(differences(mine, results)),
            spread(faster),
        ]
        table.append([name, *found])
    headers = [
        "peer, setting, network, workers",
        "peer",
        "ours",
        "ours less peer",
        "samples/s, ours to peer",
    ]
    title = f"Peers and ours with the same options: accuracy after {rows[0][0].epochs} epochs, %"
    print_table(title, headers, table)


def report_cost(rows: Sequence[Row]) -> None:
    """Print the merge with an outer step against that without, and samples/s against the plain
    mean.
    """
    table = []
    for case, results in rows:
        plain = next(
            found for base, found in rows if base.network == case.network and base.setting == "mean"
        )
        pairs = of_both(results, plain)
        if case.contestant == MERGES:
            name = f"ms a merge of {case.network}, 2 workers, {case.setting} (goal <= 1.05)"
            values = [1000 * median(result.merge_seconds) for result in results.values()]
            to = [median(own.merge_seconds) / median(other.merge_seconds) for own, other in pairs]
        else:
            name = (
                f"samples/s of {case.network}, {case.workers} workers, {case.setting} (goal >= 0.8)"
            )
            values = speeds(results)
            to = [own.speed / other.speed for own, other in pairs if own.speed and other.speed]
        table.append([name, spread(values, ",.1f"), spread(to)])
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
}
"""Cases, and what prints them."""


# -- the command
# -------------------------------------------------------------------------------------------


def measure(cases: Sequence[Case], path: Path) -> dict[str, Result]:
    """Run the cases that a file does not have, of contestants that are installed, and return what
    it has then.
    """
    done = load(path)
    missing = [
        case for case in cases if case.key not in done and case.contestant in (OURS, MERGES, *PEERS)
    ]
    print(
        f"{len(cases)} fits, {len(cases) - len(missing)} of them done or not installed",
        file=sys.stderr,
    )
    for number, case in enumerate(missing, 1):
        result = run(case)
        append(path, case, result)
        print(
            f"{number}/{len(missing)}: {case.label}: {result.accuracy:.2f}%",
            file=sys.stderr,
            flush=True,
        )
    return load(path)


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
    custom = options_parser.add_argument_group("the group custom").add_argument
    custom("--options", nargs="+", default=[], help="options of fit as JSON, each a setting")
    custom("--optimizer-options", default="{}", help="JSON that replaces options of the optimizer")
    return common.parsed(options_parser, epochs=1, samples=2_400, workers=[2, 8])


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
    found = {key: result for path in options.report for key, result in load(path).items()}
    for name in options.parts:
        make, report = GROUPS[name]
        rows: dict[str, Row] = {}
        for case in make(options):
            row = rows.setdefault(replace(case, seed=0).key, (case, {}))
            if (result := found.get(case.key)) is not None:
                row[1][case.seed] = result
        report([row for row in rows.values() if row[1]])


if __name__ == "__main__":
    main()
