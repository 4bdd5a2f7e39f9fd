"""What does a slow link cost? Samples/s, bytes, and seconds to an accuracy, against other methods.

Each node is a network namespace of this machine, and the kernel limits its link to the others.
Needs root.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, count, islice, product
from statistics import fmean
from typing import Any

import _common as common
import _peers as peers
import torch
from _applications import call, has_compss
from _common import BATCH, NETWORKS, Images, spread
from _nodes import LINK, Fit, Network, compss_in, link_bytes, nodes_of, ray_in, skip_without_network
from _peers import DDP, MERGING, PEERS, PLAIN
from _quotas import Quota
from torch import distributed, nn

ENGINES = {"ray": ray_in, "compss": compss_in}
"""What starts each engine in a network."""
TIMED_EPOCHS = 3
"""Epochs over a limited link: the first, in which blocks travel, and two to compute later ones."""
SKIPPED_BATCHES = peers.POWER_SGD_START + 2
"""Batches before those whose time is measured, where not whole epochs are."""
WARM_UP_SAMPLES = 4_000
LANGUAGE_MODEL = "language model"
LENGTH = 40
"""Characters of a text."""
TEST_TEXTS = 2_000
"""Number of texts to evaluate on."""
OURS: dict[str, dict[str, Any]] = {
    "ours": {},
    "ours, blocks stay": {"shuffle": None},
    "ours, blocks stay, int8": {"shuffle": None, "dtype": "int8"},
    "ours, blocks stay, auto": {"shuffle": None, "kind": "auto"},
}
"""The arguments of ``Merge``, and the fit's shuffle where it is not the default."""
NO_LIMIT = 0.0
"""The rate of links that are not limited."""
_A_MERGE = "2.1 times the parameters a merge"
GOALS = {
    10_000.0: "not behind DDP in seconds",
    1_000.0: f"0.9 of no limit, 4 times DDP's samples/s, 0.25 of its seconds, {_A_MERGE}",
    100.0: f"0.8 of no limit, 30 times DDP's samples/s, 0.05 of its seconds, {_A_MERGE}",
}
"""Goals for two nodes, by Mbit/s."""


# -- what is trained and measured


@dataclass(frozen=True)
class Job:
    """What is trained, with a worker (or rank) in each node."""

    network: str
    samples: int
    epochs: int
    seed: int
    workers: int
    switch: str = ""
    """The namespace whose interfaces count bytes; none are counted where it is empty."""
    evaluated: bool = False
    """Whether the network is evaluated after each epoch, in time that does not count."""
    batches: int = 0
    """Batches to measure, from which a peer's epochs are computed; 0 for whole epochs."""
    quota: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the nodes' ``Quota``, which holds while the clock runs."""

    def images(self) -> Images:
        """Return images, or texts and the next character of each of theirs."""
        if self.network in NETWORKS:
            return common.load_images(self.samples)
        from language_model import made_sentences, tokens  # type: ignore[import-not-found]  # of apps/

        number = self.samples + TEST_TEXTS
        text = tokens(" ".join(made_sentences(number * LENGTH // 20)))[: number * LENGTH + 1]
        x = text[:-1].reshape(number, LENGTH)
        y = text[1:].reshape(number, LENGTH)
        return Images(x[: self.samples], y[: self.samples], x[self.samples :], y[self.samples :])

    def net(self) -> nn.Module:
        """Return the network with the parameters that the seed gives."""
        if self.network in NETWORKS:
            return common.network(self.network, self.seed)
        from language_model import CharacterModel

        torch.manual_seed(self.seed)
        model: nn.Module = CharacterModel()
        return model

    @property
    def optimizer(self) -> dict[str, Any]:
        """The optimizer: Adam for texts."""
        return common.SGD if self.network in NETWORKS else {"optimizer": "adam", "lr": 0.01}


@dataclass(frozen=True)
class Measured:
    """What a contestant did."""

    samples: int
    """Samples of an epoch."""
    seconds: list[float]
    """From the start to the end of each epoch, when anyone can have the network."""
    sent: list[list[float]]
    """MB that each node has sent by then."""
    merges: float
    """Merges of an epoch."""
    accuracies: list[float] = field(default_factory=list)
    """In percent after each epoch, where it was evaluated."""
    computed: bool = False
    """Whether epochs are computed from measured batches, or from the first epochs."""

    @property
    def speed(self) -> float:
        """Samples a second from the second epoch on."""
        return self.samples * (len(self.seconds) - 1) / (self.seconds[-1] - self.seconds[0])

    def seconds_to(self, target: float) -> float | None:
        """Return the seconds to the end of the first epoch with the accuracy, if there is one."""
        ends = zip(self.seconds, self.accuracies, strict=True)
        return next((seconds for seconds, accuracy in ends if accuracy >= target), None)

    def extended(self, epochs: int) -> Measured:
        """Return it with so many epochs.

        Those that were not run take the mean from the second on.
        """
        missing = range(1, epochs - len(self.seconds) + 1)
        later = [self.seconds[-1] + number * self.samples / self.speed for number in missing]
        return replace(self, seconds=self.seconds + later, computed=bool(later))

    @property
    def sent_a_merge(self) -> list[float]:
        """MB that each node sends for a merge, from the second epoch on."""
        merges = self.merges * (len(self.sent) - 1)
        of_nodes = zip(self.sent[0], self.sent[-1], strict=True)
        return [(last - first) / merges for first, last in of_nodes]


class _Clock:
    """Notes when epochs end, and what each node has sent by then.

    The ports of the switch count that.
    """

    def __init__(self, switch: str) -> None:
        self._switch = switch
        self._before = self._megabytes()
        self.seconds: list[float] = []
        self.sent: list[list[float]] = []
        self.began = time.perf_counter()

    def _megabytes(self) -> list[float]:
        if not self._switch:
            return []
        sent, _ = link_bytes(self._switch)
        return [of_node / 1e6 for of_node in sent]

    def stop(self) -> None:
        """Note the end of an epoch."""
        self.seconds.append(time.perf_counter() - self.began)
        self.sent.append(
            [after - before for after, before in zip(self._megabytes(), self._before, strict=True)]
        )


# -- in the nodes


def ours(engine: str, options: dict[str, Any], job_fields: dict[str, Any]) -> dict[str, Any]:
    """Fit with workers that a fit before has started, in an application."""
    from compss_train import Merge  # not at the top: peers do without
    from compss_train.callbacks import Callback

    job = Job(**job_fields)
    states: list[dict[str, Any]] = []
    images = job.images()
    shuffle = options.pop("shuffle", "blocks")

    class AtEpochs(Callback):
        """Stops the clock after each epoch, and keeps the parameters to be evaluated."""

        trained = 0

        def on_round_end(self, trainer: Any, record: dict[str, Any]) -> None:
            self.trained += record["samples"]
            if self.trained % job.samples == 0:
                clock.stop()
                if job.evaluated:
                    states.append(trainer.get_parameters())

    started = common.warm_trainer(
        job.net(),
        job.optimizer,
        workers=job.workers,
        engine=engine,
        seed=job.seed,
        warm=(images.x[:WARM_UP_SAMPLES], images.y[:WARM_UP_SAMPLES]),
    )
    with started as trainer, Quota(**job.quota).held():
        x, y = images.blocked(2 * job.workers)
        clock = _Clock(job.switch)
        fitted = common.fit(
            trainer,
            x,
            y,
            epochs=job.epochs,
            merge=Merge(**options),
            shuffle=shuffle,
            callbacks=[AtEpochs()],
        )
        fetching = time.perf_counter() - clock.began - clock.seconds[-1]
    net = job.net()
    accuracies = []
    for state in states:
        net.load_state_dict({name: torch.as_tensor(value) for name, value in state.items()})
        accuracies.append(common.accuracy_of(net, images))
    seconds = [end + fetching for end in clock.seconds]
    merges = len(fitted.history) / job.epochs
    return asdict(Measured(job.samples, seconds, clock.sent, merges, accuracies))


def rank(number: int, folder: str, method: str, job_fields: dict[str, Any]) -> dict[str, Any]:
    """Be a rank of a peer, which meets the others in a folder.

    It talks to them over its node's link.
    """
    job = Job(**job_fields)
    torch.set_num_threads(1)
    images = job.images()
    net = job.net()
    x = torch.from_numpy(images.x)
    y = torch.from_numpy(images.y)
    peers.warm_up(net, job.optimizer, x[:BATCH], y[:BATCH])
    member = peers.Rank(number=number, ranks=job.workers, folder=folder, interface=LINK)
    member.join()
    steps = len(member.shares(job.samples, 0, job.seed))
    merges = 1.0 if method in MERGING else float(steps)
    optimizer = peers.optimizer_for(net, job.optimizer)
    exchange = peers.Exchange(net, optimizer, member, period=steps)
    quota = Quota() if number else Quota(**job.quota)
    with peers.METHODS[method](exchange) as (wrapped, after_step), quota.held():

        def train(batches: Sequence[torch.Tensor] | Iterator[torch.Tensor]) -> None:
            for rows in batches:
                peers.step(wrapped, optimizer, x[rows], y[rows])
                after_step()

        epochs = (member.shares(job.samples, epoch, job.seed) for epoch in count())
        if not job.batches:
            evaluate = partial(common.accuracy_of, net, images)
            return asdict(_whole_epochs(job, train, epochs, merges=merges, evaluate=evaluate))
        batches = chain.from_iterable(epochs)
        train(islice(batches, SKIPPED_BATCHES))
        distributed.barrier()
        clock = _Clock(job.switch)
        train(islice(batches, job.batches))
        clock.stop()
    parts = [epoch * steps / job.batches for epoch in range(1, job.epochs + 1)]
    seconds = [clock.seconds[0] * part for part in parts]
    sent = [[of_node * part for of_node in clock.sent[0]] for part in parts]
    return asdict(Measured(job.samples, seconds, sent, merges, computed=True))


def _whole_epochs(
    job: Job,
    train: Callable[[Sequence[torch.Tensor]], None],
    epochs: Iterator[Sequence[torch.Tensor]],
    *,
    merges: float,
    evaluate: Callable[[], float],
) -> Measured:
    """Train whole epochs; evaluation between them does not count."""
    accuracies: list[float] = []
    distributed.barrier()
    clock = _Clock(job.switch)
    for batches in islice(epochs, job.epochs):
        train(batches)
        clock.stop()
        paused = time.perf_counter()
        if job.evaluated:
            if distributed.get_rank() == 0:
                accuracies.append(evaluate())
            distributed.barrier()
        clock.began += time.perf_counter() - paused
    return Measured(job.samples, clock.seconds, clock.sent, merges, accuracies)


# -- runs

Results = dict[tuple[float, str], list[Measured]]
"""What was measured by link and contestant, for each seed."""


def run_ours(fit: Fit, label: str, job: Job, engine: str) -> Measured:
    """Run our fit on the engine.

    Where accuracies are asked for, they are those of the local engine, which has the same bits.
    """
    accuracies = []
    if job.evaluated:
        local_job = replace(job, switch="", quota={})
        accuracies = Measured(**call(ours, "local", OURS[label], asdict(local_job))).accuracies
    measured = Measured(**fit(ours, engine, OURS[label], asdict(replace(job, evaluated=False))))
    return replace(measured, accuracies=accuracies)


def run_peer(network: Network, label: str, job: Job) -> Measured:
    """Run a peer's ranks, one in each node, and return what the first one has measured."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(job.workers) as threads:

        def run(number: int) -> Any:
            return call(rank, number, folder, label, asdict(job), within=network.within(number))

        first, *_ = threads.map(run, range(job.workers))
        return Measured(**first)


def measure(options: argparse.Namespace, network: Network, fit: Fit) -> Results:
    """Run all contestants over all links.

    They run first without a limit, where their accuracies are measured.
    """
    results: Results = {}
    for seed, link in product(range(options.repetitions), [NO_LIMIT, *options.rates]):
        network.limit(link)
        job = Job(
            options.network,
            options.samples,
            options.epochs,
            seed=seed,
            workers=options.nodes,
            switch=network.switch,
            evaluated=link == NO_LIMIT,
            quota=asdict(network.quota),
        )
        whole = link == NO_LIMIT or options.whole
        timed = job if whole else replace(job, epochs=min(options.epochs, TIMED_EPOCHS))
        for label in options.contestants:
            if label in OURS:
                measured = run_ours(fit, label, timed, options.engine).extended(options.epochs)
            elif label in MERGING or whole:
                measured = run_peer(network, label, timed).extended(options.epochs)
            else:
                measured = run_peer(network, label, replace(job, batches=options.batches))
            if link != NO_LIMIT:  # with any link a network learns the same
                measured = replace(measured, accuracies=results[NO_LIMIT, label][-1].accuracies)
            results.setdefault((link, label), []).append(measured)
            print(f"{seed + 1}, {name_of(link)}: {label}: {measured.speed:,.0f}/s", file=sys.stderr)
    return results


def name_of(link: float) -> str:
    return f"{link:g} Mbit/s" if link else "no limit"


def report(options: argparse.Namespace, results: Results) -> None:
    """Print a table for each link, and the accuracies."""
    headers = [
        *("contestant", "samples/s", "in epoch 1", "of no limit", "of DDP", "merges an epoch"),
        *("MB a merge", "most", "of all-reduce", "MB in epoch 1"),
        *(f"s to {options.target:g}%", "of DDP", "seconds are"),
    ]
    for link in dict.fromkeys(link for link, _ in results):
        rows = [row(options, results, link, label) for label in options.contestants]
        title = f"{name_of(link)}, {options.nodes} nodes, {options.network}, {options.engine}"
        common.print_table(title, headers, rows)
        print(f"Goals for two nodes: {GOALS[link]}" if link in GOALS else "")
    rows = []
    for label in options.contestants:
        by_epoch = zip(*(run.accuracies for run in results[NO_LIMIT, label]), strict=True)
        rows.append([label, *(spread(accuracies) for accuracies in by_epoch)])
    headers = ["after epoch", *map(str, range(1, options.epochs + 1))]
    common.print_table("Test accuracy, %", headers, rows)
    print(
        "samples/s and MB a merge: from epoch 2 on. MB: what a node sends, blocks too; mean "
        "over nodes, and most; the most over what all-reduce sends, 2 (n - 1) / n parameters"
    )


def all_reduce_megabytes(options: argparse.Namespace) -> float:
    """Return what each node sends for a ring all-reduce of the parameters."""
    job = Job(options.network, options.samples, options.epochs, seed=0, workers=options.nodes)
    size = sum(parameter.nbytes for parameter in job.net().parameters())
    return float(2 * (options.nodes - 1) / options.nodes * size / 1e6)


def row(options: argparse.Namespace, results: Results, link: float, label: str) -> list[str]:
    """Return a contestant's cells."""
    target = options.target

    def seconds_to(runs: Sequence[Measured]) -> list[float]:
        """Return the seconds of all runs, or none if any has not reached the accuracy."""
        ends = [run.seconds_to(target) for run in runs]
        reached = [seconds for seconds in ends if seconds is not None]
        return reached if len(reached) == len(runs) else []

    def against(values: Sequence[float], base: Sequence[float], form: str = ".2f") -> str:
        return spread(common.ratios(values, base), form) if values and base else "-"

    runs = results[link, label]
    ddp_runs = results.get((link, DDP), [])
    speeds = [run.speed for run in runs]
    seconds = seconds_to(runs)
    return [
        label,
        spread(speeds, ",.0f"),
        spread([run.samples / run.seconds[0] for run in runs], ",.0f"),
        against(speeds, [run.speed for run in results[NO_LIMIT, label]]),
        against(speeds, [run.speed for run in ddp_runs]),
        f"{runs[0].merges:g}",
        spread([fmean(run.sent_a_merge) for run in runs]),
        spread([max(run.sent_a_merge) for run in runs]),
        spread([max(run.sent_a_merge) / all_reduce_megabytes(options) for run in runs], ".2f"),
        spread([fmean(run.sent[0]) for run in runs], ".0f"),
        spread(seconds, ".1f"),
        against(seconds, seconds_to(ddp_runs), ".3f"),
        "computed" if runs[0].computed else "measured",
    ]


def main() -> None:
    contestants = [*OURS, *(peer for peer in PEERS if peer != PLAIN)]
    options_parser = common.parser(__doc__, repetitions=3, epochs=8, samples=60_000)
    add = options_parser.add_argument
    add("--network", choices=(*NETWORKS, LANGUAGE_MODEL), default="MLP")
    add("--nodes", type=int, choices=(2, 4, 8), default=2, help="with a worker or rank each")
    add("--engine", choices=ENGINES, default="ray", help="that runs our workers")
    add("--rates", type=float, nargs="+", default=[10_000.0, 1_000.0, 100.0], help="Mbit/s")
    add("--contestants", nargs="+", choices=contestants, default=contestants)
    add("--target", type=float, default=88.0, help="test accuracy, percent")
    add(
        "--batches",
        type=int,
        default=20,
        help="whose time is measured where gradients cross a limited link",
    )
    add("--whole", action="store_true", help="measure whole epochs there, too")
    options = common.parsed(options_parser, epochs=2, samples=4_000, batches=5, rates=[100.0])
    if options.epochs < 2:
        options_parser.error("--epochs: at least 2, as blocks travel in the first one")
    if min(options.rates) <= 0:
        options_parser.error("--rates: above 0; links without a limit are measured in any case")
    skip_without_network()
    if options.engine == "compss" and not has_compss():
        return
    source = common.image_source()
    if options.network == LANGUAGE_MODEL:
        source = "texts of apps/language_model.py"
    print(f"{source}; {options.samples} of them, {options.epochs} epochs, {BATCH} a batch")
    with nodes_of(options.nodes) as network, common.threads_of_children(1):
        network.share_cores()
        with ENGINES[options.engine](network) as fit:
            results = measure(options, network, fit)
    report(options, results)


if __name__ == "__main__":
    main()
