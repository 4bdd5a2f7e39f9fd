"""Nodes that are joined by slow links: samples a second, bytes, and seconds to an accuracy, against DDP.

Each node is a network namespace of this machine, and the kernel limits its link to the others. Needs root.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import _network_parts as parts
from _common import NETWORKS, image_source, parser, print_table, ratios, spread, threads_of_children
from _compss import HERE, Runtime, call, skip_without_compss
from _network_parts import DDP, LANGUAGE_MODEL, LINK, PEERS, Job, Measured

PREFIX = "compss_train-"
"""Of the names of namespaces; the number of the process that made them follows."""
BURST_SECONDS, WAIT = 0.001, "50ms"
"""What a link sends at once after a pause, and how long it lets a packet wait before it drops it."""
PACKET, LEAST_BURST = 2**14, 2**15
"""Bytes: the most that the kernel hands to a link at once, and that a link sends at once after a pause.

With its 64 KiB, gradients of 0.1 MB would hardly feel a limit of 100 Mbit/s.
"""
MODULES = (HERE, HERE.parent, HERE.parent / "apps")
"""Where programs in the nodes look for modules: the language model is one of ``apps/``."""
QUOTA_PERIOD = 20_000  # microseconds
WATCH_SECONDS = 5.0
"""Seconds between looks for interfaces that are gone."""
TIMED_EPOCHS = 3
"""Epochs that run over a limited link: the first, in which blocks travel, and two whose mean later ones take."""
RAY_PORT = 6379
HEAD = ("--head", f"--port={RAY_PORT}", "--include-dashboard=false")
RAY_START = (sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats")

OURS: dict[str, dict[str, Any]] = {
    "ours": {},
    "ours, blocks stay": {"shuffle": None},
    "ours, blocks stay, int8": {"shuffle": None, "dtype": "int8"},
    "ours, blocks stay, auto": {"shuffle": None, "kind": "auto"},
}
"""The arguments of ``Merge``, and the fit's shuffle where it is not the default."""

Link: TypeAlias = tuple[float, float]
"""Mbit/s (0 for no limit) and milliseconds of delay each way."""
Results: TypeAlias = dict[tuple[Link, str], list[Measured]]
"""By link and contestant, for each seed."""
Fit: TypeAlias = Callable[..., Any]
"""Calls a function of ours in the first node, on the engine."""

NO_LIMIT: Link = (0.0, 0.0)
GOALS = {
    10_000.0: "not behind DDP in seconds",
    1_000.0: "0.9 of no limit, 4 times DDP's samples/s, 0.25 of its seconds, 2.1 times the parameters a merge",
    100.0: "0.8 of no limit, 30 times DDP's samples/s, 0.05 of its seconds, 2.1 times the parameters a merge",
}
"""By Mbit/s."""


# -- nodes -------------------------------------------------------------------------------------------------


def skip_without_network() -> None:
    """End this process, well, where no network can be made."""
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        why = f"there is no {' and no '.join(missing)} on the PATH; install iproute2" if missing else "try sudo"
        print(f"SKIPPED: needs root and iproute2, to make network namespaces and to limit their links: {why}")
        sys.exit(0)


class Network:
    """Nodes with a network each, whose links meet in a switch; all of them namespaces."""

    def __init__(self, nodes: int) -> None:
        self.switch = f"{PREFIX}{os.getpid()}-switch"
        self.nodes = [f"{PREFIX}{os.getpid()}-{number}" for number in range(nodes)]
        self.addresses = [f"198.18.0.{number + 1}" for number in range(nodes)]  # from the range for benchmarks
        self._ports = [f"port{number}" for number in range(nodes)]
        self._groups: list[Path] = []

    def make(self) -> None:
        """Make the namespaces, the switch (a bridge) and the links; remove those that a killed process has left."""
        for name in _run("ip", "netns", "list").split():
            if name.startswith(PREFIX) and not Path("/proc", name.removeprefix(PREFIX).split("-")[0]).exists():
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
            _run("ip", "-netns", node, "route", "add", "default", "dev", LINK)  # tells programs their address

    def within(self, number: int) -> list[str]:
        """Return the words before a command that runs in a node."""
        words = ["ip", "netns", "exec", self.nodes[number]]
        if self._groups:
            joining = f'echo $$ > {self._groups[number]}/cgroup.procs && exec "$@"'
            words = ["sh", "-c", joining, "sh", *words]
        return words

    def share_cores(self) -> None:
        """Give every node the same part of this machine's cores, where it has fewer of them than nodes."""
        cores = len(os.sched_getaffinity(0))
        if cores >= len(self.nodes):
            return
        root, quota = Path("/sys/fs/cgroup"), QUOTA_PERIOD * cores // len(self.nodes)
        try:
            for name in self.nodes:
                group = (root / "cpu" if (root / "cpu").is_dir() else root) / name
                group.mkdir()
                self._groups.append(group)
                if (group / "cpu.max").exists():
                    (group / "cpu.max").write_text(f"{quota} {QUOTA_PERIOD}")
                else:
                    (group / "cpu.cfs_period_us").write_text(str(QUOTA_PERIOD))
                    (group / "cpu.cfs_quota_us").write_text(str(quota))
            print(f"{len(self.nodes)} nodes on {cores} cores: each has a quota of {quota / QUOTA_PERIOD:.2f} cores")
        except OSError as error:
            self._remove_groups()
            print(f"{len(self.nodes)} nodes share {cores} cores as they like: no quota can be set ({error})")

    def can_delay(self) -> bool:
        """Return whether this kernel delays packets."""
        trial = ("tc", "-netns", self.switch, "qdisc", "replace", "dev", "lo", "root", "netem", "delay", "1ms")
        return subprocess.run(trial, capture_output=True).returncode == 0

    def limit(self, link: Link) -> None:
        """Give both directions of all links a rate, and what nodes send a delay."""
        rate, delay = link
        ends = [(self.switch, port, 0.0) for port in self._ports]
        ends += [(node, LINK, delay) for node in self.nodes]
        for namespace, interface, late in ends:
            queue = ("tc", "-netns", namespace, "qdisc")
            subprocess.run([*queue, "delete", "dev", interface, "root"], capture_output=True)  # none at first
            if rate:
                burst = max(LEAST_BURST, int(BURST_SECONDS * rate * 1e6 / 8))
                bucket = ("tbf", "rate", f"{rate:g}mbit", "burst", str(burst), "latency", WAIT)
                _run(*queue, "add", "dev", interface, "root", "handle", "1:", *bucket)
            if late:
                place = ("parent", "1:1") if rate else ("root",)
                delayed = ("netem", "delay", f"{late:g}ms", "limit", "100000")
                _run(*queue, "add", "dev", interface, *place, "handle", "10:", *delayed)

    def plug(self, number: int, state: str) -> None:
        """Set a node's port in the switch ``up`` or ``down``, like a cable."""
        _run("ip", "-netns", self.switch, "link", "set", self._ports[number], state)

    def gone(self) -> list[str]:
        """Return the nodes that have lost their interface."""
        shown = {node: ["ip", "-netns", node, "link", "show", LINK] for node in self.nodes}
        return [node for node, command in shown.items() if subprocess.run(command, capture_output=True).returncode]

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
            with suppress(OSError):  # a process that ends a moment later: an empty group costs nothing
                self._groups.pop().rmdir()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def _kill(name: str) -> None:
    while pids := subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split():
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

    over = threading.Event()

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            if network.gone():
                network.end_processes()  # which would wait for each other
                return

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, interrupted)
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, MODULES), os.environ.get("PYTHONPATH", "")])
    try:
        network.make()
        threading.Thread(target=watch, daemon=True).start()
        yield network
    except KeyboardInterrupt:
        sys.exit("interrupted: its namespaces are removed")
    except RuntimeError as error:
        gone = network.gone()
        sys.exit(f"the interface {LINK} of {', '.join(gone)} is gone" if gone else str(error))
    finally:
        over.set()
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        network.remove()


# -- engines -----------------------------------------------------------------------------------------------


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
    """Let COMPSs start a worker with one unit in each node, by ssh; each fit is an application of its own."""
    skip_without_compss()
    sshd = shutil.which("sshd") or "/usr/sbin/sshd"
    for number, address in enumerate(network.addresses):
        _run(*network.within(number), sshd, "-o", f"ListenAddress={address}", "-o", "PidFile=none")
    runtime = Runtime(1, hosts=network.addresses, pythonpath=[*map(str, MODULES)])
    yield partial(call, runtime=runtime, within=network.within(0))


ENGINES = {"ray": ray_in, "compss": compss_in}


# -- runs --------------------------------------------------------------------------------------------------


def run_ours(fit: Fit, label: str, job: Job, engine: str) -> Measured:
    """Run our fit on the engine; where accuracies are asked for, they are those of the local engine's same bits."""
    accuracies = []
    if job.evaluated:
        apart = replace(job, switch="")
        accuracies = Measured(**call(parts.ours, "local", OURS[label], asdict(apart))).accuracies
    measured = Measured(**fit(parts.ours, engine, OURS[label], asdict(replace(job, evaluated=False))))
    return replace(measured, accuracies=accuracies)


def run_peer(network: Network, label: str, job: Job) -> Measured:
    """Run a peer's ranks, one in each node, and return what the first one has measured."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(job.workers) as threads:

        def run(number: int) -> Any:
            return call(parts.rank, number, folder, label, asdict(job), within=network.within(number))

        first, *_ = threads.map(run, range(job.workers))
        return Measured(**first)


def measure(options: argparse.Namespace, network: Network, fit: Fit) -> Results:
    """Run all contestants over all links; first without a limit, where their accuracies are measured."""
    results: Results = {}
    links = [NO_LIMIT, *product(options.rates, options.delays)]
    for repetition, link in product(range(options.repetitions), links):
        network.limit(link)
        job = Job(options.network, options.samples, options.epochs, repetition, options.nodes, network.switch)
        job = replace(job, evaluated=link == NO_LIMIT)
        whole = link == NO_LIMIT or options.whole
        timed = job if whole else replace(job, epochs=min(options.epochs, TIMED_EPOCHS))
        for label in options.contestants:
            if label in OURS:
                measured = run_ours(fit, label, timed, options.engine).extended(options.epochs)
            elif label in parts.MERGING or whole:
                measured = run_peer(network, label, timed).extended(options.epochs)
            else:
                measured = run_peer(network, label, replace(job, batches=options.batches))
            if link != NO_LIMIT:  # with any link a network learns the same
                measured = replace(measured, accuracies=results[NO_LIMIT, label][-1].accuracies)
            results.setdefault((link, label), []).append(measured)
            print(f"{repetition + 1}, {name_of(link)}: {label}: {measured.speed:,.0f}/s", file=sys.stderr)
    return results


# -- reports -----------------------------------------------------------------------------------------------


def name_of(link: Link) -> str:
    rate, delay = link
    name = f"{rate:g} Mbit/s" if rate else "no limit"
    return f"{name}, {delay:g} ms" if delay else name


def seconds_to(target: float, runs: Sequence[Measured]) -> list[float]:
    """Return the seconds to the end of the first epoch with the accuracy, by seed; none if a seed misses it."""
    reached = [run.seconds_to(target) for run in runs]
    return [seconds for seconds in reached if seconds is not None] if None not in reached else []


def against(values: Sequence[float], others: Sequence[float], form: str = ".2f") -> str:
    return spread(ratios(values, others), form) if values and others else "-"


def report(options: argparse.Namespace, results: Results) -> None:
    """Print a table for each link, and the accuracies."""
    headers = ["contestant", "samples/s", "in epoch 1", "of no limit", "of DDP", "merges an epoch", "MB a merge"]
    headers += ["most", "MB in epoch 1", f"s to {options.target:g}%", "of DDP", "seconds are"]
    for link in dict.fromkeys(link for link, _ in results):
        rows = [row(options.target, results, link, label) for label in options.contestants]
        print_table(f"{name_of(link)}, {options.nodes} nodes, {options.network}, {options.engine}", headers, rows)
        print(f"Goals for two nodes: {GOALS[link[0]]}" if link[0] in GOALS else "")
    rows = []
    for label in options.contestants:
        by_epoch = zip(*(run.accuracies for run in results[NO_LIMIT, label]), strict=True)
        rows.append([label, *(spread(each) for each in by_epoch)])
    print_table("Test accuracy, %", ["after epoch", *map(str, range(1, options.epochs + 1))], rows)
    print("samples/s and MB a merge: from epoch 2 on. MB: what a node sends, blocks too; mean over nodes, and most")


def row(target: float, results: Results, link: Link, label: str) -> list[str]:
    """Return a contestant's cells."""
    runs, peers = results[link, label], results.get((link, DDP), [])
    speeds, seconds = [run.speed for run in runs], seconds_to(target, runs)
    return [
        label,
        spread(speeds, ",.0f"),
        spread([run.first_speed for run in runs], ",.0f"),
        against(speeds, [run.speed for run in results[NO_LIMIT, label]]),
        against(speeds, [run.speed for run in peers]),
        f"{runs[0].merges:g}",
        spread([fmean(run.sent_a_merge) for run in runs]),
        spread([max(run.sent_a_merge) for run in runs]),
        spread([fmean(run.sent[0]) for run in runs], ".0f"),
        spread(seconds, ".1f"),
        against(seconds, seconds_to(target, peers), ".3f"),
        "computed" if runs[0].computed else "measured",
    ]


def draw(options: argparse.Namespace, results: Results) -> None:
    """Draw the seconds to the accuracy over the rate of the link, to an SVG file."""
    import matplotlib

    matplotlib.use("Agg")  # draws to files only, so that no display is needed
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for label in options.contestants:
        found = [seconds_to(options.target, results[(rate, options.delays[0]), label]) for rate in options.rates]
        means = [fmean(seconds) if seconds else float("nan") for seconds in found]
        axis.plot(options.rates, means, "o-" if label in OURS else "s--", label=label)
    axis.set(xscale="log", yscale="log", xlabel="link, Mbit/s", ylabel=f"seconds to {options.target:g}%")
    axis.set_xticks(options.rates, [f"{rate:g}" for rate in options.rates])
    axis.minorticks_off()
    axis.grid(color="#eeeeee")
    axis.legend(frameon=False)
    figure.savefig(options.svg)
    pyplot.close(figure)
    print(f"wrote {options.svg}")


def main() -> None:
    everyone = [*OURS, *PEERS]
    options_parser = parser(__doc__, repetitions=3, epochs=8)
    options_parser.add_argument("--samples", type=int, default=60_000, help="training images or texts")
    options_parser.add_argument("--network", choices=(*NETWORKS, LANGUAGE_MODEL), default="MLP")
    options_parser.add_argument("--nodes", type=int, choices=(2, 4), default=2, help="with a worker or rank each")
    options_parser.add_argument("--engine", choices=ENGINES, default="ray", help="that runs our workers")
    options_parser.add_argument("--rates", type=float, nargs="+", default=[10_000.0, 1_000.0, 100.0], help="Mbit/s")
    options_parser.add_argument("--delays", type=float, nargs="+", default=[0.0], help="milliseconds each way")
    options_parser.add_argument("--contestants", nargs="+", choices=everyone, default=everyone)
    options_parser.add_argument("--target", type=float, default=88.0, help="test accuracy, percent")
    options_parser.add_argument(
        "--batches", type=int, default=20, help="whose time is measured where gradients travel over a limited link"
    )
    options_parser.add_argument("--whole", action="store_true", help="measure whole epochs there, too")
    options_parser.add_argument("--svg", type=Path, help="file for a figure of the seconds to the accuracy")
    options = options_parser.parse_args()
    if options.quick:
        options.repetitions, options.epochs, options.samples = 1, 2, 4_000
        options.batches, options.rates = 5, [100.0]
    if options.epochs < 2:
        options_parser.error("--epochs: at least 2, as blocks travel in the first one")
    skip_without_network()
    source = "texts of apps/language_model.py" if options.network == LANGUAGE_MODEL else image_source()
    print(f"{source}: {options.samples} of them, {options.epochs} epochs, {parts.BATCH} a batch")
    with nodes_of(options.nodes) as network, threads_of_children(1):
        network.share_cores()
        if any(options.delays) and not network.can_delay():
            print("without delays: this kernel has none (netem, of the module sch_netem)")
            options.delays = [0.0]
        with ENGINES[options.engine](network) as fit:
            results = measure(options, network, fit)
    report(options, results)
    if options.svg:
        draw(options, results)


if __name__ == "__main__":
    main()
