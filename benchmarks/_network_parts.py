"""What runs in the nodes of ``network``: our fit, and the ranks of peers, each in an application of its own."""

from __future__ import annotations

import atexit
import copy
import importlib.util
import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import partial
from hashlib import sha256
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import psutil
import torch
from _common import NETWORKS, Images, accuracy, load_images, network
from _ranks import join_group
from torch import distributed, nn

BATCH = 100
LEARNING_RATE, MOMENTUM = 0.05, 0.9
WARM_UP_SAMPLES, WARM_UP_BATCHES = 4_000, 20
POWER_SGD_START = 10
"""Batches before PowerSGD compresses."""
ONE_BUCKET_MB = 1_000
SKIPPED_BATCHES = POWER_SGD_START + 2
"""Batches before those whose time is measured, where not whole epochs are."""
LINK = "eth0"
"""A node's interface, whose other end is a port of the switch."""

LANGUAGE_MODEL = "language model"
LENGTH, TEST_TEXTS = 40, 2_000
"""Characters of a text, and texts to evaluate on."""

DDP, FP16, POWER_SGD, AVERAGER = "DDP", "DDP fp16", "DDP PowerSGD", "PeriodicModelAverager"
DILOCO = "torchft DiLoCo"
MERGING = (AVERAGER, DILOCO)
"""Peers that merge once an epoch."""

Step: TypeAlias = Callable[[], None]
Method: TypeAlias = tuple[nn.Module, Step]
"""What a peer calls instead of its network, and what it does after each step."""


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
    def first_speed(self) -> float:
        """Samples a second in the first epoch."""
        return self.samples / self.seconds[0]

    @property
    def speed(self) -> float:
        """Samples a second from the second epoch on."""
        return self.samples * (len(self.seconds) - 1) / (self.seconds[-1] - self.seconds[0])

    def seconds_to(self, target: float) -> float | None:
        """Return the seconds to the end of the first epoch with the accuracy, ``None`` if there is none."""
        ends = zip(self.seconds, self.accuracies, strict=True)
        return next((seconds for seconds, accuracy in ends if accuracy >= target), None)

    def extended(self, epochs: int) -> Measured:
        """Return it with as many epochs as given; those that were not run take the mean from the second on."""
        missing = range(1, epochs - len(self.seconds) + 1)
        later = [self.seconds[-1] + number * self.samples / self.speed for number in missing]
        return replace(self, seconds=self.seconds + later, computed=bool(later))

    @property
    def sent_a_merge(self) -> list[float]:
        """MB that each node sends for a merge, from the second epoch on."""
        merges = self.merges * (len(self.sent) - 1)
        return [(last - first) / merges for first, last in zip(self.sent[0], self.sent[-1], strict=True)]


def sent_megabytes(switch: str) -> list[float]:
    """Return what each node has sent so far, as the ports of the switch count it."""
    if not switch:
        return []
    shown = ["ip", "-json", "-stats", "-netns", switch, "link", "show", "type", "veth"]
    links = json.loads(subprocess.run(shown, check=True, capture_output=True).stdout)
    return [link["stats64"]["rx"]["bytes"] / 1e6 for link in sorted(links, key=lambda link: link["ifname"])]


def samples_of(job: Job) -> Images:
    """Return images, or texts and the next character of each of theirs."""
    if job.network in NETWORKS:
        return load_images(job.samples)
    from language_model import made_sentences, tokens  # of apps/, where the applications look for modules

    number = job.samples + TEST_TEXTS
    text = tokens(" ".join(made_sentences(number * LENGTH // 20)))[: number * LENGTH + 1]
    x, y = (part.reshape(number, LENGTH) for part in (text[:-1], text[1:]))
    return Images(x[: job.samples], y[: job.samples], x[job.samples :], y[job.samples :])


def network_of(job: Job) -> nn.Module:
    """Return the network with the parameters that the seed gives."""
    if job.network in NETWORKS:
        return network(job.network, job.seed)
    from language_model import CharacterModel

    torch.manual_seed(job.seed)
    model: nn.Module = CharacterModel()
    return model


def optimizer_of(job: Job) -> dict[str, Any]:
    """Return the optimizer: Adam for texts."""
    if job.network in NETWORKS:
        return {"optimizer": "sgd", "lr": LEARNING_RATE, "momentum": MOMENTUM}
    return {"optimizer": "adam", "lr": 0.01}


class _Clock:
    """Notes when epochs end, and what was sent by then."""

    def __init__(self, switch: str) -> None:
        self._switch = switch
        self._before = sent_megabytes(switch)
        self.seconds: list[float] = []
        self.sent: list[list[float]] = []
        self.began = time.perf_counter()

    def stop(self) -> None:
        """Note the end of an epoch."""
        self.seconds.append(time.perf_counter() - self.began)
        now = sent_megabytes(self._switch)
        self.sent.append([after - before for after, before in zip(now, self._before, strict=True)])


# -- ours --------------------------------------------------------------------------------------------------


def ours(engine: str, options: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """Fit with workers that a fit before has started; building anew forgets what that one trained."""
    from compss_train import BlockedTensor, DistributedTrainer, Merge  # not at the top: peers do without

    job = Job(**asked)
    images, optimizer = samples_of(job), optimizer_of(job)
    with DistributedTrainer(job.workers, engine=engine, seed=job.seed, threads=1) as trainer:
        shuffle, merge = options.pop("shuffle", "blocks"), Merge(**options)
        fit = partial(trainer.fit, batch_size=BATCH, merge=merge, shuffle=shuffle, progress=False)

        def build() -> None:
            trainer.build(network_of(job), optimizer, "cross_entropy")

        build()
        fit(images.x[:WARM_UP_SAMPLES], images.y[:WARM_UP_SAMPLES], num_epochs=2)
        build()
        grid = (2 * job.workers, 1)
        x, y = BlockedTensor.from_array(images.x, grid), BlockedTensor.from_array(images.y, grid)
        states: list[dict[str, Any]] = []
        clock = _Clock(job.switch)
        fit(x, y, num_epochs=job.epochs, callbacks=[_at_epochs(job, clock, states)])
        fetching = time.perf_counter() - clock.began - clock.seconds[-1]
        merges = len(trainer.history) / job.epochs
    seconds = [each + fetching for each in clock.seconds]
    accuracies = [_evaluated(job, state, images) for state in states]
    return asdict(Measured(job.samples, seconds, clock.sent, merges, accuracies))


def _at_epochs(job: Job, clock: _Clock, states: list[dict[str, Any]]) -> Any:
    """Return a callback that stops the clock after each epoch, and keeps the parameters to be evaluated."""
    from compss_train.callbacks import Callback

    class AtEpochs(Callback):
        trained = 0

        def on_round_end(self, trainer: Any, record: dict[str, Any]) -> None:
            self.trained += record["samples"]
            if self.trained % job.samples == 0:
                clock.stop()
                if job.evaluated:
                    states.append(trainer.get_parameters())

    return AtEpochs()


def repeatable(engine: str, folder: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Fit with a checkpoint each round, from the last one if there is any; return the bits, and rounds' seconds."""
    from compss_train import BlockedTensor, DistributedTrainer
    from compss_train.callbacks import Checkpoint

    job = Job(**asked)
    images, optimizer = samples_of(job), optimizer_of(job)
    with DistributedTrainer(job.workers, engine=engine, seed=job.seed, threads=1) as trainer:
        trainer.build(network_of(job), optimizer, "cross_entropy")
        grid = (2 * job.workers, 1)
        x, y = BlockedTensor.from_array(images.x, grid), BlockedTensor.from_array(images.y, grid)
        options: dict[str, Any] = {"callbacks": [Checkpoint(folder)], "progress": False}
        if any(Path(folder).iterdir()):
            options["resume"] = folder
        trainer.fit(x, y, num_epochs=job.epochs, batch_size=BATCH, **options)
        seconds = [record["seconds"] for record in trainer.history]
        arrays = [np.asarray(value).tobytes() for _, value in sorted(trainer.get_parameters().items())]
    return {"bits": sha256(b"".join(arrays)).hexdigest()[:12], "seconds": seconds}


def _evaluated(job: Job, state: dict[str, Any], images: Images) -> float:
    net = network_of(job)
    net.load_state_dict({name: torch.as_tensor(value) for name, value in state.items()})
    return _accuracy(net, images)


def _accuracy(net: nn.Module, images: Images) -> float:
    net.eval()
    with torch.no_grad():
        outputs = net(torch.from_numpy(images.test_x))
    net.train()
    return accuracy(outputs, images.test_y)


# -- peers -------------------------------------------------------------------------------------------------


def rank(number: int, folder: str, method: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Be a rank of a peer, which meets the others in a folder and talks to them over its node's link."""
    job = Job(**asked)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = LINK
    images, net = samples_of(job), network_of(job)
    optimizer = _optimizer(net, job)
    _warm_up(copy.deepcopy(net), images, job)
    join_group(folder, number, job.workers)
    wrapped, after_step = _METHODS[method](net, optimizer, job)
    x, y = torch.from_numpy(images.x), torch.from_numpy(images.y)

    def step(rows: torch.Tensor) -> None:
        _learn(wrapped, optimizer, x[rows], y[rows])
        after_step()

    merges = 1.0 if method in MERGING else float(len(_shares(job, number, 0)))
    if job.batches:
        return asdict(_some_batches(job, number, step, merges))
    return asdict(_whole_epochs(job, number, step, merges, partial(_accuracy, net, images)))


def _whole_epochs(
    job: Job, number: int, step: Callable[[torch.Tensor], None], merges: float, evaluate: Callable[[], float]
) -> Measured:
    accuracies: list[float] = []
    distributed.barrier()
    clock = _Clock(job.switch)
    for epoch in range(job.epochs):
        for rows in _shares(job, number, epoch):
            step(rows)
        clock.stop()
        paused = time.perf_counter()
        if job.evaluated:
            accuracies += [evaluate()] if number == 0 else []
            distributed.barrier()
        clock.began += time.perf_counter() - paused
    return Measured(job.samples, clock.seconds, clock.sent, merges, accuracies)


def _some_batches(job: Job, number: int, step: Callable[[torch.Tensor], None], merges: float) -> Measured:
    batches = chain.from_iterable(_shares(job, number, epoch) for epoch in count())
    for rows in islice(batches, SKIPPED_BATCHES):
        step(rows)
    distributed.barrier()
    clock = _Clock(job.switch)
    for rows in islice(batches, job.batches):
        step(rows)
    clock.stop()
    epochs = [epoch * len(_shares(job, number, 0)) / job.batches for epoch in range(1, job.epochs + 1)]
    seconds = [clock.seconds[0] * each for each in epochs]
    sent = [[of_node * each for of_node in clock.sent[0]] for each in epochs]
    return Measured(job.samples, seconds, sent, merges, computed=True)


def _shares(job: Job, number: int, epoch: int) -> tuple[torch.Tensor, ...]:
    """Return the rows of the rank's batches in an epoch: every rank has as many."""
    generator = torch.Generator().manual_seed(1000 * job.seed + epoch)
    order = torch.randperm(job.samples, generator=generator)[: job.samples // job.workers * job.workers]
    return order[number :: job.workers].split(BATCH)


def _optimizer(net: nn.Module, job: Job) -> torch.optim.Optimizer:
    options = optimizer_of(job)
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[options.pop("optimizer")]
    return kind(net.parameters(), **options)


def _learn(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()


def _warm_up(net: nn.Module, images: Images, job: Job) -> None:
    optimizer, x, y = _optimizer(net, job), torch.from_numpy(images.x[:BATCH]), torch.from_numpy(images.y[:BATCH])
    for _ in range(WARM_UP_BATCHES):
        _learn(net, optimizer, x, y)


def _nothing() -> None:
    """Do nothing after a step."""


def _ddp(net: nn.Module, optimizer: torch.optim.Optimizer, job: Job) -> Method:
    return nn.parallel.DistributedDataParallel(net), _nothing


def _fp16(net: nn.Module, optimizer: torch.optim.Optimizer, job: Job) -> Method:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    wrapped = nn.parallel.DistributedDataParallel(net)
    wrapped.register_comm_hook(None, fp16_compress_hook)
    return wrapped, _nothing


def _power_sgd(net: nn.Module, optimizer: torch.optim.Optimizer, job: Job) -> Method:
    """With the rank that PyTorch takes by default, 1, and its error feedback.

    All gradients are in one bucket: a bucket needs three sums in a row, whose order gloo mixes up between buckets.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    wrapped = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=ONE_BUCKET_MB)
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=POWER_SGD_START)
    wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return wrapped, _nothing


def _averager(net: nn.Module, optimizer: torch.optim.Optimizer, job: Job) -> Method:
    """Average parameters after the last batch of each epoch; its first step has the number 0."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    period = len(_shares(job, 0, 0))
    averager = PeriodicModelAverager(period, warmup_steps=period - 1)
    return net, lambda: averager.average_parameters(net.parameters())


def _diloco(net: nn.Module, optimizer: torch.optim.Optimizer, job: Job) -> Method:
    """Merge once an epoch, with DiLoCo's outer optimizer; each rank is a replica of torchft's.

    What it starts ends with the process.
    """
    from torchft import Manager, ProcessGroupGloo
    from torchft.coordination import LighthouseServer
    from torchft.local_sgd import DiLoCo

    number, limit = distributed.get_rank(), timedelta(seconds=120)
    address = psutil.net_if_addrs()[LINK][0].address
    servers = [LighthouseServer(bind="[::]:0", min_replicas=job.workers)] if number == 0 else []
    meeting = [f"http://{address}:{server.address().rpartition(':')[2]}" for server in servers] or [""]
    distributed.broadcast_object_list(meeting, src=0)
    store = distributed.TCPStore(address, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=limit),
        load_state_dict=None,
        state_dict=None,
        min_replica_size=job.workers,
        use_async_quorum=False,
        timeout=limit,
        quorum_timeout=limit,
        rank=0,
        world_size=1,
        store_addr=address,
        store_port=store.port,
        lighthouse_addr=meeting[0],
        replica_id=str(number),
        hostname=address,
        init_sync=False,  # all ranks begin with the same parameters
    )
    started = [store, *servers]  # which end with their last reference

    def end() -> None:
        distributed.barrier()
        manager.shutdown(wait=False)
        started.clear()

    atexit.register(end)
    outer = torch.optim.SGD(net.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    method = DiLoCo(manager, [net], optimizer, outer, sync_every=len(_shares(job, 0, 0)))
    method.__enter__()
    return net, _nothing


_METHODS: dict[str, Callable[[nn.Module, torch.optim.Optimizer, Job], Method]] = {
    DDP: _ddp,
    FP16: _fp16,
    POWER_SGD: _power_sgd,
    AVERAGER: _averager,
    DILOCO: _diloco,
}
PEERS = tuple(each for each in _METHODS if each != DILOCO or importlib.util.find_spec("torchft"))
"""Those that are installed."""
