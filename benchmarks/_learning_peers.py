"""The peers of ``learning``, a process a worker: DDP, PyTorch's PeriodicModelAverager, torchft's DiLoCo."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import torch
from _common import network
from _learning_cases import AVERAGER, DDP, DILOCO, Case, schedule_of
from _learning_results import Marks, Result, State, images_of
from _ranks import join_group, meet, run_ranks
from torch import distributed, nn

WARM_UP_BATCHES = 50
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}

Step: TypeAlias = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class _Rank:
    number: int
    case: Case
    folder: str
    lighthouse: str
    """Where the processes of torchft find each other."""

    @property
    def period(self) -> int:
        """Steps between merges; with DDP gradients are averaged at each."""
        every = self.case.options.get("every", 1)
        return int(every["then"] if isinstance(every, dict) else every)

    @property
    def first_steps(self) -> int:
        """Steps at which gradients are averaged, before the parameters are."""
        every = self.case.options.get("every", 1)
        samples = len(images_of(self.case).x) // self.case.workers
        return (
            int(every["epochs"] * -(-samples // self.case.options["batch_size"])) if isinstance(every, dict) else 0
        )


def is_installed(contestant: str) -> bool:
    """Return whether a peer can run here."""
    return contestant != DILOCO or importlib.util.find_spec("torchft") is not None


def run(case: Case) -> Result:
    """Run the peer's processes, and return the first one's result."""
    with tempfile.TemporaryDirectory() as folder, _lighthouse(case) as lighthouse:
        ranks = [
            _Rank(number=number, case=case, folder=folder, lighthouse=lighthouse) for number in range(case.workers)
        ]
        result: Result = run_ranks(_run_rank, ranks)[0]
        return result


def _run_rank(rank: _Rank) -> Result | None:
    torch.set_num_threads(1)
    case, images = rank.case, images_of(rank.case)
    x, y = torch.from_numpy(images.x), torch.from_numpy(images.y)
    net = network(case.network, case.seed)
    _warm_up(case, copy.deepcopy(net), x, y)
    optimizer = optimizer_for(net, case.optimizer)
    join_group(rank.folder, rank.number, case.workers)
    with METHODS[case.contestant](rank, net, optimizer) as method:
        marks, steps = _train(rank, net, optimizer, method, x, y)
        meet()
    merges = rank.first_steps + (steps - rank.first_steps) // rank.period
    return marks.result(images, merges=merges) if rank.number == 0 else None


def optimizer_for(net: nn.Module, options: dict[str, Any]) -> torch.optim.Optimizer:
    """Return the torch optimizer of our dict."""
    others = {name: value for name, value in options.items() if name != "optimizer"}
    return OPTIMIZERS[options["optimizer"]](net.parameters(), **others)


def _warm_up(case: Case, net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    rows = torch.arange(case.options["batch_size"])
    optimizer = optimizer_for(net, case.optimizer)
    for _ in range(WARM_UP_BATCHES):
        _step(net, optimizer, x, y, rows)


def _train(
    rank: _Rank,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    method: tuple[nn.Module, Step],
    x: torch.Tensor,
    y: torch.Tensor,
) -> tuple[Marks, int]:
    """Train on this rank's share of each epoch's permutation; return the marks and the number of steps."""
    case, marks, steps = rank.case, Marks(case=rank.case), 0
    wrapped, after_step = method
    rates = [group["lr"] for group in optimizer.param_groups]
    meet()
    began = time.perf_counter()
    for epoch in range(case.epochs):
        _set_rates(optimizer, rates, case, epoch)
        shares = _share(rank, len(x), epoch).split(case.options["batch_size"])
        for number, rows in enumerate(shares, 1):
            _step(wrapped, optimizer, x, y, rows)
            after_step()
            if marks.is_due(epochs := epoch + number / len(shares)):
                marks.add(epochs, time.perf_counter() - began, _merged_state(net, case))
        steps += len(shares)
    return marks, steps


def _share(rank: _Rank, samples: int, epoch: int) -> torch.Tensor:
    """Return the rows of a rank in an epoch: all samples are shuffled, and all ranks get equally many."""
    random = torch.Generator().manual_seed(rank.case.seed * 1000 + epoch)
    order = torch.randperm(samples, generator=random)
    return order[: samples - samples % rank.case.workers][rank.number :: rank.case.workers]


def _set_rates(optimizer: torch.optim.Optimizer, rates: list[float], case: Case, epoch: int) -> None:
    if (schedule := schedule_of(case)) is not None:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * schedule(epoch)


def _step(
    net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor
) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x.index_select(0, rows)), y.index_select(0, rows)).backward()
    optimizer.step()


def _merged_state(net: nn.Module, case: Case) -> State:
    """Return the mean state of all ranks, as ours evaluates; what the ranks train stays as it is."""
    state = {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}
    for tensor in state.values():
        if case.contestant != DDP and tensor.is_floating_point():  # the ranks of DDP have the same parameters
            distributed.all_reduce(tensor)
            tensor /= case.workers
    return {name: tensor.numpy() for name, tensor in state.items()}


# -- what happens between the ranks ------------------------------------------------------------------------


def _nothing() -> None:
    pass


@contextlib.contextmanager
def _data_parallel(
    rank: _Rank, net: nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[nn.Module, Step]]:
    """Average the gradients at every step."""
    yield nn.parallel.DistributedDataParallel(net), _nothing


@contextlib.contextmanager
def _averager(rank: _Rank, net: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[nn.Module, Step]]:
    """Average the parameters every so many steps, and the gradients at each step of the first epochs."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    period, first = rank.period, rank.first_steps
    averager = PeriodicModelAverager(period=period, warmup_steps=first)
    yield _post_local(net, first) if first else net, lambda: averager.average_parameters(net.parameters())


def _post_local(net: nn.Module, first_steps: int) -> nn.Module:
    """Return the network with DDP's hook, which averages gradients in the first steps only."""
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as hook

    wrapped = nn.parallel.DistributedDataParallel(net)
    state = hook.PostLocalSGDState(
        process_group=None, subgroup=None, start_localSGD_iter=first_steps, post_local_gradient_allreduce=False
    )
    wrapped.register_comm_hook(state, hook.post_localSGD_hook)
    return wrapped


@contextlib.contextmanager
def _diloco(rank: _Rank, net: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[nn.Module, Step]]:
    """Step with an outer optimizer every so many steps; each rank is a replica group of its own."""
    from torchft import Manager, ProcessGroupGloo
    from torchft.local_sgd import DiLoCo

    limit = timedelta(seconds=120)
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=limit),
        load_state_dict=None,
        state_dict=None,
        min_replica_size=rank.case.workers,
        use_async_quorum=False,
        timeout=limit,
        quorum_timeout=limit,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=rank.lighthouse,
        replica_id=str(rank.number),
        hostname="127.0.0.1",
        init_sync=False,  # all ranks begin with the same parameters
    )
    outer = optimizer_for(net, rank.case.options["outer_optimizer"])
    try:
        with DiLoCo(manager, [net], optimizer, outer, sync_every=rank.period):
            yield net, _nothing
    finally:
        manager.shutdown(wait=False)


@contextlib.contextmanager
def _lighthouse(case: Case) -> Iterator[str]:
    """Yield the address of torchft's server for quorums where the case needs it."""
    if case.contestant != DILOCO:
        yield ""
        return
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(bind="[::]:0", min_replicas=case.workers)
    try:
        yield f"http://127.0.0.1:{server.address().rpartition(':')[2]}"
    finally:
        server.shutdown()


METHODS = {DDP: _data_parallel, AVERAGER: _averager, DILOCO: _diloco}
