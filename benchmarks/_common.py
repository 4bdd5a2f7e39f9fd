"""What the benchmarks share: options, data, networks, fits, plain loops and their ranks,
applications, and tables.

As a program it is an application that calls one function: see ``call``.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed, nn

if TYPE_CHECKING:
    from compss_train import BlockedTensor, DistributedTrainer

HERE = Path(__file__).resolve().parent
FASHION_MNIST = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
MEAN = 0.2860
DEVIATION = 0.3530
"""Of Fashion-MNIST's training pixels, scaled to 0..1."""
WORKERS = 2
BATCH = 100
SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}
"""Unless a benchmark says otherwise, for us and for peers."""
WARM_UP_BATCHES = 50
"""Of plain loops, before their time begins."""

T = TypeVar("T")


# -- options
# -----------------------------------------------------------------------------------------------


def parser(
    description: str | None,
    repetitions: int,
    epochs: int = 0,
    samples: int = 0,
    parts: Iterable[str] = (),
    default: Sequence[str] = (),
) -> argparse.ArgumentParser:
    """Return a parser with the options that benchmarks have.

    ``parts`` are measurements that can be asked for by name; those of ``default``, or all, run if
    none is.
    """
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    if names := list(parts):
        default = default or names
        text = f"{', '.join(names)}; {', '.join(default)} if none is given"
        options.add_argument("parts", nargs="*", choices=[*names, []], metavar="PART", help=text)
        options.set_defaults(default_parts=default)
    options.add_argument(
        "--repetitions", type=int, default=repetitions, help="times that each contestant runs"
    )
    if epochs:
        options.add_argument(
            "--epochs", type=int, default=epochs, help="epochs (rounds) of each fit"
        )
    if samples:
        options.add_argument("--samples", type=int, default=samples, help="samples to train on")
    options.add_argument(
        "--quick", action="store_true", help="small sizes, to see that the benchmark works"
    )
    return options


def parsed(options: argparse.ArgumentParser, **quick: Any) -> argparse.Namespace:
    """Return the command line's options; with ``--quick`` a single repetition, and what ``quick``
    replaces.
    """
    given = options.parse_args()
    if "parts" in given:
        given.parts = given.parts or given.default_parts
    if given.quick:
        vars(given).update({"repetitions": 1, **quick})
    return given


# -- data and networks
# -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Images:
    """Normalised float32 images (n, 1, 28, 28) and int64 labels, for training and for testing."""

    x: NDArray[Any]
    y: NDArray[np.int64]
    test_x: NDArray[Any]
    test_y: NDArray[np.int64]

    def blocked(self, blocks: int) -> tuple[BlockedTensor, BlockedTensor]:
        """Return the training images and their labels in so many blocks."""
        from compss_train import BlockedTensor  # not at the top: peers do without

        return BlockedTensor.from_array(self.x, (blocks, 1)), BlockedTensor.from_array(
            self.y, (blocks, 1)
        )


def image_source() -> str:
    """Say where the images come from."""
    if FASHION_MNIST.is_dir():
        return f"Fashion-MNIST from {FASHION_MNIST}; torch {torch.__version__}"
    return (
        f"SYNTHETIC images of Fashion-MNIST's shape (no folder {FASHION_MNIST}): accuracies "
        "mean nothing"
    )


def load_images(samples: int = 60_000) -> Images:
    """Return the first ``samples`` training images and up to as many test images."""
    if not FASHION_MNIST.is_dir():
        return _synthetic(samples)
    return Images(*_labelled("train", samples), *_labelled("t10k", samples))


def _labelled(part: str, samples: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    pixels = _idx(FASHION_MNIST / f"{part}-images-idx3-ubyte.gz")[:samples, None]
    labels = _idx(FASHION_MNIST / f"{part}-labels-idx1-ubyte.gz")[:samples]
    images = (pixels.astype(np.float32) / np.float32(255) - np.float32(MEAN)) / np.float32(
        DEVIATION
    )
    return images, labels.astype(np.int64)


def _idx(path: Path) -> NDArray[np.uint8]:
    """Read an idx file of bytes: 2 zero bytes, type, number of dimensions, big-endian dimensions,
    data.
    """
    data = gzip.decompress(path.read_bytes())
    dimensions = np.frombuffer(data, ">u4", count=data[3], offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(dimensions.astype(int))


def _synthetic(samples: int) -> Images:
    """Return blurry class prototypes under noise, which a network can learn."""
    random = np.random.default_rng(0)
    prototypes = random.standard_normal((10, 1, 28, 28), np.float32)
    labels = random.integers(0, 10, samples + samples // 6)
    x = prototypes[labels] + 2 * random.standard_normal((len(labels), 1, 28, 28), np.float32)
    return Images(x[:samples], labels[:samples], x[samples:], labels[samples:])


def mlp() -> nn.Module:
    """784-1024-1024-10."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )


def cnn() -> nn.Module:
    """Two convolutions with BatchNorm and a linear layer."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1568, 10)),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {"MLP": mlp, "CNN": cnn}


def network(name: str, seed: int) -> nn.Module:
    """Return the named network with the parameters that the seed gives, the same for all
    contestants.
    """
    torch.manual_seed(seed)
    return NETWORKS[name]()


def accuracy(outputs: torch.Tensor | NDArray[Any], labels: NDArray[np.int64]) -> float:
    """Return the percentage of outputs whose largest entry is the label's."""
    return 100 * float((np.asarray(outputs).argmax(1) == labels).mean())


def accuracy_of(net: nn.Module, images: Images) -> float:
    """Return the percentage of the test images that a network recognises."""
    net.eval()
    with torch.no_grad():
        outputs = torch.cat([net(batch) for batch in torch.from_numpy(images.test_x).split(1000)])
    net.train()
    return accuracy(outputs.float(), images.test_y)


# -- our fits
# ----------------------------------------------------------------------------------------------


@contextmanager
def warm_trainer(
    net: nn.Module,
    optimizer: Mapping[str, Any] = SGD,
    *,
    workers: int = WORKERS,
    engine: Any = "local",
    seed: int = 0,
    warm: tuple[Any, Any] | None = None,
    **build: Any,
) -> Iterator[DistributedTrainer]:
    """Yield a trainer, with a thread a worker, whose processes a fit on ``warm`` (or on zeros) has
    started.

    Building the network anew forgets what that fit has trained.
    """
    from compss_train import DistributedTrainer  # not at the top: peers do without

    x, y = warm or (np.zeros((20 * BATCH, 1, 28, 28), np.float32), np.zeros(20 * BATCH, np.int64))
    with DistributedTrainer(workers, engine=engine, seed=seed, threads=1) as trainer:
        trainer.build(net, optimizer, "cross_entropy", **build)
        trainer.fit(x, y, num_epochs=2, batch_size=BATCH, progress=False)
        trainer.build(net, optimizer, "cross_entropy", **build)
        yield trainer


@dataclass(frozen=True)
class Fitted:
    """What a fit took."""

    seconds: float
    history: Sequence[Any]

    @property
    def rate(self) -> float:
        """Samples a second; those that a reservoir repeats count."""
        return float(sum(record["samples"] for record in self.history) / self.seconds)


def fit(trainer: DistributedTrainer, *data: Any, epochs: int, **options: Any) -> Fitted:
    """Fit in batches of 100, and return what it took."""
    options = {"batch_size": BATCH, "progress": False, **options}
    seconds = seconds_of(lambda: trainer.fit(*data, num_epochs=epochs, **options))
    return Fitted(seconds, trainer.history)


def seconds_of(
    function: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return what a call takes."""
    began = clock()
    function()
    return clock() - began


class Stamp:
    """A transform that notes in a file a process when it is called first.

    ``time.perf_counter`` is the machine's monotonic clock on Linux, so that processes' readings
    compare.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Note the time, and return the batch as it is."""
        now = time.perf_counter()
        path = Path(self.folder, str(os.getpid()))
        if not path.exists():
            path.write_text(repr(now))
        return batch

    def times(self) -> list[float]:
        """Return every process's first call, the earliest first."""
        return sorted(float(path.read_text()) for path in Path(self.folder).iterdir())

    def processes(self) -> list[int]:
        """Return the processes that have called it and run."""
        numbers = sorted(int(path.name) for path in Path(self.folder).iterdir())
        return [number for number in numbers if Path("/proc", str(number)).exists()]


# -- processes
# ---------------------------------------------------------------------------------------------


def environment(**variables: str) -> AbstractContextManager[Any]:
    """Set environment variables, for processes that are started meanwhile."""
    return patch.dict(os.environ, variables)


def threads_of_children(threads: int) -> AbstractContextManager[Any]:
    """Let processes started meanwhile use so many threads: the libraries read it when they are
    imported.
    """
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return environment(**dict.fromkeys(names, str(threads)))


def spawned(target: Callable[..., None], *args: Any) -> Any:
    """Return a new Python process, started."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=args)
    process.start()
    return process


def in_fresh_process(function: Callable[..., T], *args: Any) -> T:
    """Return ``function(*args)`` as a new Python process computes it."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        return executor.submit(function, *args).result()


# -- plain loops, and the ranks of peers
# -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A process of a peer, which meets the others in a folder."""

    number: int = 0
    ranks: int = 1
    folder: str = ""
    interface: str = "lo"

    def join(self) -> None:
        """Join the process group of all ranks, until the process ends.

        It is not destroyed before: its destructor can wait for its own thread, which waits for
        Python's lock.
        """
        # Host names need not resolve in a container.
        os.environ["GLOO_SOCKET_IFNAME"] = self.interface
        meeting = f"file://{Path(self.folder, 'store')}"
        distributed.init_process_group(
            "gloo", init_method=meeting, rank=self.number, world_size=self.ranks
        )

    def shares(
        self, samples: int, epoch: int, seed: int, batch: int = BATCH
    ) -> tuple[torch.Tensor, ...]:
        """Return the rows of this rank's batches in an epoch: all samples are shuffled, all ranks
        get as many.
        """
        order = torch.randperm(
            samples, generator=torch.Generator().manual_seed(1000 * seed + epoch)
        )
        own: tuple[torch.Tensor, ...] = order[: samples - samples % self.ranks][
            self.number :: self.ranks
        ].split(batch)
        return own


START_LIMIT = 300  # seconds until all processes of a peer must be ready, or something is wrong

_barrier: Barrier | None = None


def run_ranks(function: Callable[..., T], ranks: int, *args: Any, threads: int = 1) -> list[T]:
    """Return ``function(rank, *args)`` of each rank, each in a new process; the function calls
    ``meet``.
    """
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(ranks)
    with (
        tempfile.TemporaryDirectory() as folder,
        threads_of_children(threads),
        ProcessPoolExecutor(
            ranks, context, initializer=_set_barrier, initargs=(start,)
        ) as executor,
    ):
        each = [Rank(number=number, ranks=ranks, folder=folder) for number in range(ranks)]
        return list(executor.map(function, each, *([arg] * ranks for arg in args)))


def _set_barrier(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent has ended: waiting for the others, it would outlive a killed
    benchmark.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def meet() -> None:
    """Wait until all ranks are here."""
    if _barrier is not None:
        _barrier.wait(START_LIMIT)


def optimizer_for(net: nn.Module, options: Mapping[str, Any]) -> torch.optim.Optimizer:
    """Return the torch optimizer of our dict."""
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
    }
    others = {name: value for name, value in options.items() if name != "optimizer"}
    return kinds[options["optimizer"]](net.parameters(), **others)


def step(
    net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> None:
    """Train on a batch with the least that it takes: no loss is kept, nothing is measured."""
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()


def warm_up(net: nn.Module, options: Mapping[str, Any], x: torch.Tensor, y: torch.Tensor) -> None:
    """Train a copy of the network on a batch, again and again: the first batches of a process are
    slower.
    """
    own = copy.deepcopy(net)
    optimizer = optimizer_for(own, options)
    for _ in range(WARM_UP_BATCHES):
        step(own, optimizer, x, y)


Method: TypeAlias = tuple[nn.Module, Callable[[], object]]
"""What a peer calls in place of its network, and what it does after each step."""


@dataclass(frozen=True)
class Exchange:
    """What a peer exchanges between its ranks, and when."""

    net: nn.Module
    optimizer: torch.optim.Optimizer
    rank: Rank
    period: int
    """Steps between merges."""


@contextmanager
def _plain(peer: Exchange) -> Iterator[Method]:
    yield peer.net, lambda: None


POWER_SGD_START = 10
"""Batches before PowerSGD compresses."""


@contextmanager
def _ddp(peer: Exchange, compression: str = "") -> Iterator[Method]:
    """PowerSGD has the rank that PyTorch takes by default, 1, and its error feedback.

    All its gradients are in one bucket: a bucket needs three sums in a row, which gloo mixes up
    between buckets.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    wrapped = nn.parallel.DistributedDataParallel(
        peer.net, bucket_cap_mb=1_000 if compression == POWER_SGD else None
    )
    if compression == POWER_SGD:
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=POWER_SGD_START)
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif compression == FP16:
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    yield wrapped, lambda: None


@contextmanager
def _averager(peer: Exchange) -> Iterator[Method]:
    """Average the parameters after every ``period`` steps."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    # Its first step has the number 0.
    averager = PeriodicModelAverager(peer.period, warmup_steps=peer.period - 1)
    yield peer.net, lambda: averager.average_parameters(peer.net.parameters())


@contextmanager
def _diloco(peer: Exchange) -> Iterator[Method]:
    """Step with DiLoCo's outer optimizer every ``period`` steps; each rank is a replica group of
    torchft's.
    """
    import psutil
    from torchft import Manager, ProcessGroupGloo
    from torchft.coordination import LighthouseServer
    from torchft.local_sgd import DiLoCo

    rank = peer.rank
    limit = timedelta(seconds=120)
    address = psutil.net_if_addrs()[rank.interface][0].address
    servers = [LighthouseServer(bind="[::]:0", min_replicas=rank.ranks)] if rank.number == 0 else []
    meeting = [f"http://{address}:{server.address().rpartition(':')[2]}" for server in servers] or [
        ""
    ]
    distributed.broadcast_object_list(meeting, src=0)
    store = distributed.TCPStore(address, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    manager = Manager(
        pg=ProcessGroupGloo(timeout=limit),
        load_state_dict=None,
        state_dict=None,
        min_replica_size=rank.ranks,
        use_async_quorum=False,
        timeout=limit,
        quorum_timeout=limit,
        rank=0,
        world_size=1,
        store_addr=address,
        store_port=store.port,
        lighthouse_addr=meeting[0],
        replica_id=str(rank.number),
        hostname=address,
        init_sync=False,  # all ranks begin with the same parameters
    )
    outer = torch.optim.SGD(peer.net.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    with DiLoCo(manager, [peer.net], peer.optimizer, outer, sync_every=peer.period):
        yield peer.net, lambda: None
    distributed.barrier()
    manager.shutdown(wait=False)


DDP = "DDP"
FP16 = "DDP fp16"
POWER_SGD = "DDP PowerSGD"
AVERAGER = "PeriodicModelAverager"
PLAIN = "plain loop"
DILOCO = "torchft DiLoCo"
METHODS: dict[str, Callable[[Exchange], AbstractContextManager[Method]]] = {
    PLAIN: _plain,
    DDP: _ddp,
    FP16: partial(_ddp, compression=FP16),
    POWER_SGD: partial(_ddp, compression=POWER_SGD),
    AVERAGER: _averager,
    DILOCO: _diloco,
}
PEERS = tuple(each for each in METHODS if each != DILOCO or importlib.util.find_spec("torchft"))
"""Those that are installed."""
MERGING = (AVERAGER, DILOCO)
"""Peers that exchange parameters, not gradients."""


# -- applications
# ------------------------------------------------------------------------------------------


DEADLINE = 1800.0
GRACE = 10.0
"""Seconds for an application, which hangs if it takes longer, and for its workers when it has
ended.
"""


@dataclass(frozen=True)
class Runtime:
    """How COMPSs runs an application: with so many computing units a node, by default on this
    machine only.
    """

    units: int = WORKERS
    hosts: Sequence[str] = ()
    """The nodes, each with a worker, if there are several; the application runs on the first."""
    pythonpath: Sequence[str] = ()
    """Folders for modules beside ours, on the workers too."""
    environment: Mapping[str, str] = field(default_factory=dict)


def has_compss() -> bool:
    """Return whether COMPSs is here, and say it if not: everything else can be measured without
    it.
    """
    if shutil.which("runcompss") is None:
        print(
            "SKIPPED: there is no runcompss on the PATH; compss-train doctor says what COMPSs needs"
        )
        return False
    return True


def call(
    function: Callable[..., Any],
    *arguments: Any,
    runtime: Runtime | None = None,
    within: Sequence[str] = (),
) -> Any:
    """Return what the function returns in a new application: of COMPSs where a runtime is given.

    It is found by its file and name; arguments and result are what JSON can hold, and go through
    files, as what COMPSs prints is not to be relied on. ``within`` are words before the command,
    which say where it runs.
    """
    with tempfile.TemporaryDirectory(prefix="compss_bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        request = folder / "request.json"
        result = folder / "result.json"
        module = Path(function.__code__.co_filename).stem
        request.write_text(json.dumps([module, function.__name__, arguments, str(result)]))
        python = [sys.executable] if runtime is None else _runcompss(runtime, folder)
        variables = {} if runtime is None else runtime.environment
        code = _run(
            [*within, *python, str(Path(__file__).resolve()), str(request)],
            folder,
            {**os.environ, **variables},
        )
        if code or not result.exists():
            words = (folder / "output").read_text(errors="replace").splitlines()[-40:]
            raise RuntimeError(
                "\n".join([f"{function.__name__} ended with {code}; its last words:", *words])
            )
        return json.loads(result.read_text())


def _runcompss(runtime: Runtime, folder: Path) -> list[str]:
    configure = [sys.executable, "-m", "compss_train", "configure", f"--units={runtime.units}"]
    files = [f"--folder={folder}", f"--working-dir={folder}/workers"]
    several: list[str] = []
    if runtime.hosts:
        configure.append(f"--hosts={','.join(runtime.hosts)}")
        several = [f"--master_name={runtime.hosts[0]}", "--cpu_affinity=disabled"]
    subprocess.run([*configure, *files], check=True, stdout=subprocess.DEVNULL)
    return [
        *("runcompss", "--lang=python", f"--log_dir={folder}", *several),
        *(f"--project={folder}/project.xml", f"--resources={folder}/resources.xml"),
        f"--python_interpreter={sys.executable}",
        f"--pythonpath={':'.join([str(HERE), str(HERE.parent), *runtime.pythonpath])}",
    ]


def _run(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> int | None:
    """Run the command; return its exit code, or ``None`` where it did not end in time. Leave no
    process behind.
    """
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            until = time.monotonic() + GRACE
            while (left := _processes(folder)) and time.monotonic() < until:
                time.sleep(0.2)
            for each in left:
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)


def _processes(folder: Path) -> list[int]:
    """Return the workers, which ssh starts: they are known by the folder on their command lines."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # one that has just ended
            if entry.name.isdecimal() and os.fsencode(folder) in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def _application(request: Path) -> None:
    """Call the function that a file names, imported, so that what it defines has a module for
    workers, too.
    """
    module, function, arguments, result = json.loads(request.read_text())
    returned = getattr(importlib.import_module(module), function)(*arguments)
    Path(result).write_text(json.dumps(returned))


# -- tables
# ------------------------------------------------------------------------------------------------


def in_turn(contestants: Mapping[str, Callable[[int], T]], repetitions: int) -> dict[str, list[T]]:
    """Call all contestants with the repetition's number, one after another, so that noise meets all
    of them.
    """
    results: dict[str, list[T]] = {label: [] for label in contestants}
    for repetition in range(repetitions):
        for label, contestant in contestants.items():
            results[label].append(contestant(repetition))
            print(
                f"{repetition + 1}: {label}: {results[label][-1]}"[:200],
                file=sys.stderr,
                flush=True,
            )
    return results


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Return "median (min-max)"; a plain number where there is one value, a dash where there is
    none.
    """
    if not values:
        return "-"
    if len(values) == 1:
        return format(values[0], form)
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def ratios(ours: Sequence[float], peers: Sequence[float]) -> list[float]:
    """Return the ratio within each repetition: what disturbs the machine disturbs both sides of
    it.
    """
    return [mine / theirs for mine, theirs in zip(ours, peers, strict=True)]


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under headers: the first column to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in [headers, *rows]) for column in range(len(headers))]
    print(f"\n{title}", "-" * len(title), sep="\n")
    for row in [headers, *rows]:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        print("  ".join(cells).rstrip(), flush=True)


def print_rates(
    title: str,
    rates: Mapping[str, Sequence[float]],
    to: str,
    goal: str = "",
    unit: str = "samples/s",
    form: str = ",.0f",
) -> None:
    """Print each contestant's rates, and their ratios to those of one of them."""
    rows = [
        [
            label,
            spread(values, form),
            spread(ratios(values, rates[to])) if len(values) == len(rates[to]) else "-",
        ]
        for label, values in rates.items()
    ]
    print_table(title, ["contestant", unit, f"to {to}{f' (goal {goal})' if goal else ''}"], rows)


if __name__ == "__main__":
    _application(Path(sys.argv[1]))
