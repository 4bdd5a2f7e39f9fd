"""The peers of ``throughput``: plain PyTorch loops and DistributedDataParallel, in processes of their own."""

from __future__ import annotations

import contextlib
import copy
import tempfile
import time
from dataclasses import dataclass
from statistics import fmean

import torch
from _common import accuracy, load_images, network
from _ranks import join_group, meet, run_ranks
from torch import nn

BATCH = 100
LEARNING_RATE, MOMENTUM = 0.05, 0.9
WARM_UP_BATCHES = 50


@dataclass(frozen=True)
class Client:
    """How a peer trains: ``ranks`` processes, each on its part of the samples."""

    label: str
    ranks: int
    threads: int = 1
    data_parallel: bool = False
    """Average gradients at every step (DDP over gloo); else the ranks know nothing of each other."""
    fast: bool = False
    """bfloat16 autocast and channels_last."""


@dataclass(frozen=True)
class Task:
    """What is trained."""

    network: str
    samples: int
    epochs: int
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What a contestant reached."""

    seconds: float
    samples_per_second: float
    accuracy: float


@dataclass(frozen=True)
class _Rank:
    number: int
    peer: Client
    task: Task
    folder: str


def run_peer(peer: Client, task: Task) -> Outcome:
    """Run the peer's processes; the time is from their common start to the last one's end."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [_Rank(number, peer, task, folder) for number in range(peer.ranks)]
        results = run_ranks(_run_rank, ranks, peer.threads)
    began, ended, accuracies = zip(*results, strict=True)
    seconds = max(ended) - min(began)
    return Outcome(seconds, task.samples * task.epochs / seconds, fmean(accuracies))


def _run_rank(rank: _Rank) -> tuple[float, float, float]:
    """Return when the rank began and ended, and its network's test accuracy."""
    torch.set_num_threads(rank.peer.threads)
    images = load_images(rank.task.samples)
    part = slice(rank.number, None, rank.peer.ranks)
    x, y = torch.from_numpy(images.x[part].copy()), torch.from_numpy(images.y[part].copy())
    net = network(rank.task.network, rank.task.seed)
    if rank.peer.fast:
        net.to(memory_format=torch.channels_last)
    if rank.peer.data_parallel:
        join_group(rank.folder, rank.number, rank.peer.ranks)
    began, ended = _timed(rank, net, x, y)
    net.eval()
    with torch.no_grad(), _autocast(rank.peer):
        outputs = net(torch.from_numpy(images.test_x)).float()
    return began, ended, accuracy(outputs, images.test_y)


def _timed(rank: _Rank, net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    warm_up = WARM_UP_BATCHES * BATCH
    _train(_wrapped(rank, copy.deepcopy(net)), x[:warm_up], y[:warm_up], 1, rank.peer)
    trained = _wrapped(rank, net)
    torch.manual_seed(rank.task.seed * 1000 + rank.number)
    meet()
    began = time.perf_counter()
    _train(trained, x, y, rank.task.epochs, rank.peer)
    return began, time.perf_counter()


def _train(net: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int, peer: Client) -> None:
    """Train as a user's plain loop does, with the least that it takes: no loss is kept, nothing is measured."""
    loss_function = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    net.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            inputs, targets = x.index_select(0, rows), y.index_select(0, rows)
            if peer.fast:
                inputs = inputs.contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad()
            with _autocast(peer):
                loss = loss_function(net(inputs), targets)
            loss.backward()
            optimizer.step()


def _autocast(peer: Client) -> contextlib.AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16) if peer.fast else contextlib.nullcontext()


def _wrapped(rank: _Rank, net: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(net) if rank.peer.data_parallel else net
