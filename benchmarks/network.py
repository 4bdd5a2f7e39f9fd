"""What does a slow link cost? Samples a second, bytes, and seconds to an accuracy, against DDP and
other peers.

Each node is a network namespace of this machine, and the kernel limits its link to the others.
Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, count, islice, product
from pathlib import Path
from statistics import fmean
from typing import Any

import _common as common
import torch
from _common import BATCH, DDP, MERGING, NETWORKS, PEERS, Images, Runtime, call, spread
from torch import distributed, nn

PREFIX = "compss_train-"
LINK = "eth0"
"""Of the names of namespaces, which the number of the process that made them follows; and a node's
interface.
"""
BURST_SECONDS = 0.001
WAIT = "50ms"
"""What a link sends at once after a pause, and how long it lets a packet wait before it drops
it.
"""
PACKET = 2**14
LEAST_BURST = 2**15
"""Bytes: the most that the kernel hands to a link at once, and that a link sends at once after a
pause.

With its 64 KiB, gradients of 0.1 MB would hardly feel a limit of 100 Mbit/s.
"""
MODULES = (common.HERE, common.HERE.parent, common.HERE.parent / "apps")
"""Where programs in the nodes look for modules: the language model is one of ``apps/``."""
QUOTA_PERIOD = 20_000  # microseconds
MOST_WEIGHT = "10000"
MOST_SHARES = "262144"
"""With which nodes get their cores also on a busy machine."""
RAY_PORT = 6379
HEAD = ("--head", f"--port={RAY_PORT}", "--include-dashboard=false")
RAY_START = (sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats")

TIMED_EPOCHS = 3
"""Epochs that run over a limited link: the first, in which blocks travel, and two whose mean later
ones take.
"""
SKIPPED_BATCHES = common.POWER_SGD_START + 2
"""Batches before those whose time is measured, where not whole epochs are."""
WARM_UP_SAMPLES = 4_000
LANGUAGE_MODEL = "language model"
LENGTH = 40
TEST_TEXTS = 2_000
"""Characters of a text, and texts to evaluate on."""
OURS: dict[str, dict[str, Any]] = {
    "ours": {},
    "ours, blocks stay": {"shuffle": None},
    "ours, blocks stay, int8": {"shuffle": None, "dtype": "int8"},
    "ours, blocks stay, auto": {"shuffle": None, "kind": "auto"},
}
"""The arguments of ``Merge``, and the fit's shuffle where it is not the default."""
NO_LIMIT = 0.0
GOALS = {
    10_000.0: "not behind DDP in seconds",
    1_000.0: (
        "0.9 of no limit, 4 times DDP's samples/s, 0.25 of its seconds, 2.1 times the "
        "parameters a merge"
    ),
    100.0: (
        "0.8 of no limit, 30 times DDP's samples/s, 0.05 of its seconds, 2.1 times the "
        "parameters a merge"
    ),
}
"""By Mbit/s."""


# -- nodes
# -------------------------------------------------------------------------------------------------


def skip_without_network() -> None:
    """End this process, well, where no network can be made."""
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        why = (
            f"there is no {' and no '.join(missing)} on the PATH; install iproute2"
            if missing
            else "try sudo"
        )
        print(
            "SKIPPED: needs root and iproute2, to make network namespaces and to limit their "
            f"links: {why}"
        )
        sys.exit(0)


class Network:
    """Nodes with a network each, whose links meet in a switch; all of them namespaces."""

    def __init__(self, nodes: int) -> None:
        self.switch = f"{PREFIX}{os.getpid()}-switch"
        self.nodes = [f"{PREFIX}{os.getpid()}-{number}" for number in range(nodes)]
        # From the range for benchmarks.
        self.addresses = [f"198.18.0.{number + 1}" for number in range(nodes)]
        self._ports = [f"port{number}" for number in range(nodes)]
        self._groups: list[Path] = []

    def make(self) -> None:
        """Make the namespaces, the switch (a bridge) and the links; remove those that a killed
        process has left.
        """
        for name in _run("ip", "netns", "list").split():
            if (
                name.startswith(PREFIX)
                and not Path("/proc", name.removeprefix(PREFIX).split("-")[0]).exists()
            ):
                _remove(name)
        for name in (self.switch, *self.nodes):
            _run("ip", "netns", "add", name)
            _run("ip", "-netns", name, "link", "set", "lo", "up")
        _run("ip", "-netns", self.switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-netns", self.switch, "link", "set", "bridge", "up")
        for port, node, address in zip(self._ports, self.nodes, self.addresses, strict=True):
            other_end = ("type", "veth", "peer", "name", port, "netns", self.switch)
            _run("ip", "-netns", node, "link", "add", LINK, *other_end)
            _run("ip", "-netns", node, "link", "set", LINK, "gso_max_size", str(PACKET))
            _run("ip", "-netns", self.switch, "link", "set", port, "master", "bridge", "up")
            _run("ip", "-netns", node, "address", "add", f"{address}/24", "dev", LINK)
            _run("ip", "-netns", node, "link", "set", LINK, "up")
            # Tells programs their address.
            _run("ip", "-netns", node, "route", "add", "default", "dev", LINK)

    def within(self, number: int) -> list[str]:
        """Return the words before a command that runs in a node."""
        words = ["ip", "netns", "exec", self.nodes[number]]
        if self._groups:
            joining = f'echo $$ > {self._groups[number]}/cgroup.procs && exec "$@"'
            words = ["sh", "-c", joining, "sh", *words]
        return words

    def share_cores(self, each: float | None = None) -> None:
        """Give every node so many cores: by default the same part of them, where there are fewer
        than nodes.
        """
        cores = len(os.sched_getaffinity(0))
        if each is None and cores >= len(self.nodes):
            return
        root = Path("/sys/fs/cgroup")
        quota = int(QUOTA_PERIOD * (each or cores / len(self.nodes)))
        try:
            for name in self.nodes:
                group = (root / "cpu" if (root / "cpu").is_dir() else root) / name
                group.mkdir()
                self._groups.append(group)
                if (group / "cpu.max").exists():
                    (group / "cpu.max").write_text(f"{quota} {QUOTA_PERIOD}")
                    (group / "cpu.weight").write_text(MOST_WEIGHT)
                else:
                    (group / "cpu.shares").write_text(MOST_SHARES)
                    (group / "cpu.cfs_period_us").write_text(str(QUOTA_PERIOD))
                    (group / "cpu.cfs_quota_us").write_text(str(quota))
            print(
                f"{len(self.nodes)} nodes on {cores} cores: each has a quota of "
                f"{quota / QUOTA_PERIOD:.2f} cores"
            )
        except OSError as error:
            self._remove_groups()
            print(
                f"{len(self.nodes)} nodes share {cores} cores as they like: no quota can be "
                f"set ({error})"
            )

    def limit(self, rate: float) -> None:
        """Give both directions of all links a rate in Mbit/s."""
        for namespace, interface in [
            *((self.switch, port) for port in self._ports),
            *((n, LINK) for n in self.nodes),
        ]:
            queue = ("tc", "-netns", namespace, "qdisc")
            # None at first.
            subprocess.run([*queue, "delete", "dev", interface, "root"], capture_output=True)
            if rate:
                burst = max(LEAST_BURST, int(BURST_SECONDS * rate * 1e6 / 8))
                bucket = ("tbf", "rate", f"{rate:g}mbit", "burst", str(burst), "latency", WAIT)
                _run(*queue, "add", "dev", interface, "root", "handle", "1:", *bucket)

    def plug(self, number: int, state: str) -> None:
        """Set a node's port in the switch ``up`` or ``down``, like a cable."""
        _run("ip", "-netns", self.switch, "link", "set", self._ports[number], state)

    def end_processes(self) -> None:
        """Kill all processes in the nodes."""
        for node in self.nodes:
            _kill(node)

    def remove(self) -> None:
        """Remove all that was made."""
        for name in (*self.nodes, self.switch):
            _remove(name)
        self._remove_groups()

    def _remove_groups(self) -> None:
        while self._groups:
            # A process that ends a moment later: an empty group costs nothing.
            with suppress(OSError):
                self._groups.pop().rmdir()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}"
        )
    return done.stdout


def _kill(name: str) -> None:
    while pids := subprocess.run(
        ["ip", "netns", "pids", name], capture_output=True, text=True
    ).stdout.split():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def _remove(name: str) -> None:
    _kill(name)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@contextmanager
def nodes_of(number: int) -> Iterator[Network]:
    """Yield a network, and remove it at the end: also after an error, Ctrl-C or SIGTERM."""
    network = Network(number)

    def interrupted(signal_number: int, _: Any) -> None:
        network.end_processes()  # for threads wait for them
        raise KeyboardInterrupt

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, interrupted)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [*map(str, MODULES), os.environ.get("PYTHONPATH", "")]
    )
    try:
        network.make()
        yield network
    except KeyboardInterrupt:
        sys.exit("interrupted: its namespaces are removed")
    except RuntimeError as error:
        sys.exit(str(error))
    finally:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        network.remove()


Fit = Callable[..., Any]
"""Calls a function of ours in the first node, on the engine."""


@contextmanager
def ray_in(network: Network, *options: str) -> Iterator[Fit]:
    """Start a node of Ray with one CPU in each node, the head with these options in the first.

    The network's end ends them.
    """
    head = f"{network.addresses[0]}:{RAY_PORT}"
    tokens = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ.update({**tokens, "RAY_worker_niceness": "0"})  # as nice as peers
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for number, address in enumerate(network.addresses):
            role = [f"--address={head}"] if number else [*HEAD, *options]
            node = [f"--node-ip-address={address}", f"--temp-dir={folder}/{number}", "--num-cpus=1"]
            _run(*network.within(number), *RAY_START, *role, *node)
        yield partial(call, within=[*network.within(0), "env", f"RAY_ADDRESS={head}"])
        network.end_processes()


@contextmanager
def compss_in(network: Network) -> Iterator[Fit]:
    """Let COMPSs start a worker with one unit in each node, by ssh; each fit is an application of
    its own.
    """
    sshd = shutil.which("sshd") or "/usr/sbin/sshd"
    for number, address in enumerate(network.addresses):
        _run(*network.within(number), sshd, "-o", f"ListenAddress={address}", "-o", "PidFile=none")
    runtime = Runtime(1, hosts=network.addresses, pythonpath=[*map(str, MODULES)])
    yield partial(call, runtime=runtime, within=network.within(0))


ENGINES = {"ray": ray_in, "compss": compss_in}


# -- what is trained and measured
# --------------------------------------------------------------------------


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

    def images(self) -> Images:
        """Return images, or texts and the next character of each of theirs."""
        if self.network in NETWORKS:
            return common.load_images(self.samples)
        from language_model import made_sentences, tokens  # type: ignore[import-not-found]  # of apps/

        number = self.samples + TEST_TEXTS
        text = tokens(" ".join(made_sentences(number * LENGTH // 20)))[: number * LENGTH + 1]
        x, y = (part.reshape(number, LENGTH) for part in (text[:-1], text[1:]))
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
    """Of an epoch."""
    seconds: list[float]
    """From the start to the end of each epoch, when anyone can have the network."""
    sent: list[list[float]]
    """MB that each node has sent by then."""
    merges: float
    """Of an epoch."""
    accuracies: list[float] = field(default_factory=list)
    """In percent after each epoch, where it was evaluated."""
    computed: bool = False
    """Whether epochs are computed from measured batches, or from the first epochs."""

    @property
    def speed(self) -> float:
        """Samples a second from the second epoch on."""
        return self.samples * (len(self.seconds) - 1) / (self.seconds[-1] - self.seconds[0])

    def seconds_to(self, target: float) -> float | None:
        """Return the seconds to the end of the first epoch with the accuracy, ``None`` if there is
        none.
        """
        ends = zip(self.seconds, self.accuracies, strict=True)
        return next((seconds for seconds, accuracy in ends if accuracy >= target), None)

    def extended(self, epochs: int) -> Measured:
        """Return it with as many epochs as given; those that were not run take the mean from the
        second on.
        """
        missing = range(1, epochs - len(self.seconds) + 1)
        later = [self.seconds[-1] + number * self.samples / self.speed for number in missing]
        return replace(self, seconds=self.seconds + later, computed=bool(later))

    @property
    def sent_a_merge(self) -> list[float]:
        """MB that each node sends for a merge, from the second epoch on."""
        merges = self.merges * (len(self.sent) - 1)
        return [
            (last - first) / merges for first, last in zip(self.sent[0], self.sent[-1], strict=True)
        ]


class _Clock:
    """Notes when epochs end, and what each node has sent by then, as the ports of the switch count
    it.
    """

    def __init__(self, switch: str) -> None:
        self._shown = (
            ["ip", "-json", "-stats", "-netns", switch, "link", "show", "type", "veth"]
            if switch
            else []
        )
        self._before = self._megabytes()
        self.seconds: list[float] = []
        self.sent: list[list[float]] = []
        self.began = time.perf_counter()

    def _megabytes(self) -> list[float]:
        if not self._shown:
            return []
        links = json.loads(subprocess.run(self._shown, check=True, capture_output=True).stdout)
        return [
            link["stats64"]["rx"]["bytes"] / 1e6
            for link in sorted(links, key=lambda link: str(link["ifname"]))
        ]

    def stop(self) -> None:
        """Note the end of an epoch."""
        self.seconds.append(time.perf_counter() - self.began)
        self.sent.append(
            [after - before for after, before in zip(self._megabytes(), self._before, strict=True)]
        )


# -- in the nodes
# ------------------------------------------------------------------------------------------


def ours(engine: str, options: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """Fit with workers that a fit before has started, in an application."""
    from compss_train import Merge  # not at the top: peers do without
    from compss_train.callbacks import Callback

    job = Job(**asked)
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

    warm = images.x[:WARM_UP_SAMPLES], images.y[:WARM_UP_SAMPLES]
    where: dict[str, Any] = {
        "workers": job.workers,
        "engine": engine,
        "seed": job.seed,
        "warm": warm,
    }
    with common.warm_trainer(job.net(), job.optimizer, **where) as trainer:
        x, y = images.blocked(2 * job.workers)
        clock = _Clock(job.switch)
        more = {"merge": Merge(**options), "shuffle": shuffle, "callbacks": [AtEpochs()]}
        fitted = common.fit(trainer, x, y, epochs=job.epochs, **more)
        fetching = time.perf_counter() - clock.began - clock.seconds[-1]
    net = job.net()
    accuracies = []
    for state in states:
        net.load_state_dict({name: torch.as_tensor(value) for name, value in state.items()})
        accuracies.append(common.accuracy_of(net, images))
    seconds = [each + fetching for each in clock.seconds]
    return asdict(
        Measured(job.samples, seconds, clock.sent, len(fitted.history) / job.epochs, accuracies)
    )


def rank(number: int, folder: str, method: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Be a rank of a peer, which meets the others in a folder and talks to them over its node's
    link.
    """
    job = Job(**asked)
    torch.set_num_threads(1)
    images = job.images()
    net = job.net()
    x = torch.from_numpy(images.x)
    y = torch.from_numpy(images.y)
    common.warm_up(net, job.optimizer, x[:BATCH], y[:BATCH])
    own = common.Rank(number=number, ranks=job.workers, folder=folder, interface=LINK)
    own.join()
    steps = len(own.shares(job.samples, 0, job.seed))
    merges = 1.0 if method in MERGING else float(steps)
    optimizer = common.optimizer_for(net, job.optimizer)
    with common.METHODS[method](common.Exchange(net, optimizer, own, period=steps)) as (
        wrapped,
        after_step,
    ):

        def train(batches: Sequence[torch.Tensor] | Iterator[torch.Tensor]) -> None:
            for rows in batches:
                common.step(wrapped, optimizer, x[rows], y[rows])
                after_step()

        epochs = (own.shares(job.samples, epoch, job.seed) for epoch in count())
        if not job.batches:
            return asdict(
                _whole_epochs(job, train, epochs, merges, lambda: common.accuracy_of(net, images))
            )
        batches = chain.from_iterable(epochs)
        train(islice(batches, SKIPPED_BATCHES))
        distributed.barrier()
        clock = _Clock(job.switch)
        train(islice(batches, job.batches))
        clock.stop()
    parts = [epoch * steps / job.batches for epoch in range(1, job.epochs + 1)]
    sent = [[of_node * part for of_node in clock.sent[0]] for part in parts]
    return asdict(
        Measured(
            job.samples, [clock.seconds[0] * part for part in parts], sent, merges, computed=True
        )
    )


def _whole_epochs(
    job: Job,
    train: Callable[[Sequence[torch.Tensor]], None],
    epochs: Iterator[Sequence[torch.Tensor]],
    merges: float,
    evaluate: Callable[[], float],
) -> Measured:
    accuracies: list[float] = []
    distributed.barrier()
    clock = _Clock(job.switch)
    for batches in islice(epochs, job.epochs):
        train(batches)
        clock.stop()
        paused = time.perf_counter()
        if job.evaluated:
            accuracies += [evaluate()] if distributed.get_rank() == 0 else []
            distributed.barrier()
        clock.began += time.perf_counter() - paused
    return Measured(job.samples, clock.seconds, clock.sent, merges, accuracies)


# -- runs
# --------------------------------------------------------------------------------------------------

Results = dict[tuple[float, str], list[Measured]]
"""By link and contestant, for each seed."""


def run_ours(fit: Fit, label: str, job: Job, engine: str) -> Measured:
    """Run our fit on the engine; where accuracies are asked for, they are those of the local
    engine's same bits.
    """
    accuracies = []
    if job.evaluated:
        accuracies = Measured(
            **call(ours, "local", OURS[label], asdict(replace(job, switch="")))
        ).accuracies
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
    """Run all contestants over all links; first without a limit, where their accuracies are
    measured.
    """
    results: Results = {}
    for seed, link in product(range(options.repetitions), [NO_LIMIT, *options.rates]):
        network.limit(link)
        job = Job(
            options.network, options.samples, options.epochs, seed, options.nodes, network.switch
        )
        job = replace(job, evaluated=link == NO_LIMIT)
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
        "contestant",
        "samples/s",
        "in epoch 1",
        "of no limit",
        "of DDP",
        "merges an epoch",
        "MB a merge",
    ]
    headers += [
        "most",
        "of all-reduce",
        "MB in epoch 1",
        f"s to {options.target:g}%",
        "of DDP",
        "seconds are",
    ]
    for link in dict.fromkeys(link for link, _ in results):
        rows = [row(options, results, link, label) for label in options.contestants]
        title = f"{name_of(link)}, {options.nodes} nodes, {options.network}, {options.engine}"
        common.print_table(title, headers, rows)
        print(f"Goals for two nodes: {GOALS[link]}" if link in GOALS else "")
    rows = []
    for label in options.contestants:
        by_epoch = zip(*(run.accuracies for run in results[NO_LIMIT, label]), strict=True)
        rows.append([label, *(spread(each) for each in by_epoch)])
    common.print_table(
        "Test accuracy, %", ["after epoch", *map(str, range(1, options.epochs + 1))], rows
    )
    print(
        "samples/s and MB a merge: from epoch 2 on. MB: what a node sends, blocks too; mean "
        "over nodes, and most; the most over what all-reduce sends, 2 (n - 1) / n parameters"
    )


def all_reduce_megabytes(options: argparse.Namespace) -> float:
    """Return what each node sends for a ring all-reduce of the parameters."""
    job = Job(options.network, options.samples, options.epochs, 0, options.nodes, switch="")
    nbytes = sum(parameter.nbytes for parameter in job.net().parameters())
    return float(2 * (options.nodes - 1) / options.nodes * nbytes / 1e6)


def row(options: argparse.Namespace, results: Results, link: float, label: str) -> list[str]:
    """Return a contestant's cells."""
    target = options.target

    def seconds_to(runs: Sequence[Measured]) -> list[float]:
        reached = [run.seconds_to(target) for run in runs]
        return (
            [seconds for seconds in reached if seconds is not None] if None not in reached else []
        )

    def against(values: Sequence[float], others: Sequence[float], form: str = ".2f") -> str:
        return spread(common.ratios(values, others), form) if values and others else "-"

    runs = results[link, label]
    peers = results.get((link, DDP), [])
    speeds = [run.speed for run in runs]
    seconds = seconds_to(runs)
    return [
        label,
        spread(speeds, ",.0f"),
        spread([run.samples / run.seconds[0] for run in runs], ",.0f"),
        against(speeds, [run.speed for run in results[NO_LIMIT, label]]),
        against(speeds, [run.speed for run in peers]),
        f"{runs[0].merges:g}",
        spread([fmean(run.sent_a_merge) for run in runs]),
        spread([max(run.sent_a_merge) for run in runs]),
        spread([max(run.sent_a_merge) / all_reduce_megabytes(options) for run in runs], ".2f"),
        spread([fmean(run.sent[0]) for run in runs], ".0f"),
        spread(seconds, ".1f"),
        against(seconds, seconds_to(peers), ".3f"),
        "computed" if runs[0].computed else "measured",
    ]


def main() -> None:
    everyone = [*OURS, *(peer for peer in PEERS if peer != common.PLAIN)]
    options_parser = common.parser(__doc__, repetitions=3, epochs=8, samples=60_000)
    add = options_parser.add_argument
    add("--network", choices=(*NETWORKS, LANGUAGE_MODEL), default="MLP")
    add("--nodes", type=int, choices=(2, 4, 8), default=2, help="with a worker or rank each")
    add("--engine", choices=ENGINES, default="ray", help="that runs our workers")
    add("--rates", type=float, nargs="+", default=[10_000.0, 1_000.0, 100.0], help="Mbit/s")
    add("--contestants", nargs="+", choices=everyone, default=everyone)
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
    skip_without_network()
    if options.engine == "compss" and not common.has_compss():
        return
    source = (
        "texts of apps/language_model.py"
        if options.network == LANGUAGE_MODEL
        else common.image_source()
    )
    print(f"{source}; {options.samples} of them, {options.epochs} epochs, {BATCH} a batch")
    with nodes_of(options.nodes) as network, common.threads_of_children(1):
        network.share_cores()
        with ENGINES[options.engine](network) as fit:
            results = measure(options, network, fit)
    report(options, results)


if __name__ == "__main__":
    main()
