"""What we are compared with: plain loops of PyTorch, and the ranks of methods that exchange."""

from __future__ import annotations

import copy
import importlib.util
import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from _common import BATCH, threads_of_children
from torch import distributed, nn

T = TypeVar("T")

WARM_UP_BATCHES = 50
"""Batches of plain loops before their time begins."""


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
        """Return the rows of this rank's batches in an epoch.

        All samples are shuffled, and all ranks get as many.
        """
        generator = torch.Generator().manual_seed(1000 * seed + epoch)
        order = torch.randperm(samples, generator=generator)
        rows = order[: samples - samples % self.ranks][self.number :: self.ranks]
        batches: tuple[torch.Tensor, ...] = rows.split(batch)
        return batches


START_LIMIT = 300
"""Seconds until all processes of a peer must be ready, or something is wrong."""

_barrier: Barrier | None = None


def run_ranks(function: Callable[..., T], ranks: int, *args: Any, threads: int = 1) -> list[T]:
    """Return ``function(rank, *args)`` of each rank, each in a new process.

    The function calls ``meet``.
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
        members = [Rank(number=number, ranks=ranks, folder=folder) for number in range(ranks)]
        return list(executor.map(function, members, *([arg] * ranks for arg in args)))


def _set_barrier(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent has ended.

    Waiting for the others, it would outlive a killed benchmark.
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
    keywords = {name: value for name, value in options.items() if name != "optimizer"}
    return kinds[options["optimizer"]](net.parameters(), **keywords)


def step(
    net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> None:
    """Train on a batch with the least that it takes: no loss is kept, nothing is measured."""
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()


def warm_up(net: nn.Module, options: Mapping[str, Any], x: torch.Tensor, y: torch.Tensor) -> None:
    """Train a copy of the network on a batch, again and again.

    The first batches of a process are slower.
    """
    trained = copy.deepcopy(net)
    optimizer = optimizer_for(trained, options)
    for _ in range(WARM_UP_BATCHES):
        step(trained, optimizer, x, y)


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
    """Wrap the network in DDP, whose gradients may be compressed.

    PowerSGD has the rank that PyTorch takes by default, 1, and its error feedback. All its
    gradients are in one bucket: a bucket needs three sums in a row, which gloo mixes up between
    buckets.
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
    """Step with DiLoCo's outer optimizer every ``period`` steps.

    Each rank is a replica group of torchft's.
    """
    import psutil
    from torchft import Manager, ProcessGroupGloo
    from torchft.coordination import LighthouseServer
    from torchft.local_sgd import DiLoCo

    rank = peer.rank
    limit = timedelta(seconds=120)
    address = psutil.net_if_addrs()[rank.interface][0].address
    meeting = [""]
    if rank.number == 0:
        server = LighthouseServer(bind="[::]:0", min_replicas=rank.ranks)
        meeting = [f"http://{address}:{server.address().rpartition(':')[2]}"]
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
"""What each peer does, by its name."""
PEERS = tuple(peer for peer in METHODS if peer != DILOCO or importlib.util.find_spec("torchft"))
"""The peers that are installed."""
MERGING = (AVERAGER, DILOCO)
"""Peers that exchange parameters, not gradients."""
