"""The tasks of workers that meet at a parameter server: train and exchange, and read what is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from compss_train.data.block import Block
from compss_train.data.reading import FilePart
from compss_train.parameter_server import ParameterServer
from compss_train.parameters import Parameters
from compss_train.worker.exchange import Exchange
from compss_train.worker.recipe import Recipe
from compss_train.worker.shard import Shard
from compss_train.worker.train import WorkerState, train


@dataclass(frozen=True)
class Served:
    """Parameters on a server: all that a task needs to get at them."""

    address: str
    token: str = field(repr=False)
    exchange: Exchange

    def connect(self, name: str | None = None, *, timeout: float = 60.0) -> ParameterServer:
        """Return a client; of one that comes again under its name, nothing is executed twice."""
        from compss_train.parameter_server import connect  # needs ZeroMQ, as nothing else of a worker does

        return connect(self.address, self.token, name=name, timeout=timeout)


def train_and_exchange(
    recipe: Recipe,
    parameters: Parameters,
    state: WorkerState,
    xs: Sequence[Block] | FilePart,
    others: Sequence[Block],
    shard: Shard,
    device: str,
    served: Served,
    worker: int,
    samples: int,
) -> tuple[Parameters, WorkerState, dict[str, Any]]:
    """Train as ``train`` does, push the change, and return the global parameters in place of the worker's own.

    ``samples`` are those of all workers in the round. Run again after its process died, it is the same client: what
    had arrived is not added twice.
    """
    trained, after, measured = train(recipe, parameters, state, xs, others, shard, device)
    with served.connect(shard.name) as server:
        served.exchange.push_change(server, worker, parameters, trained, measured["given"] / samples)
        return served.exchange.pull(server), after, measured


def read(served: Served, measured: Sequence[dict[str, Any]], name: str) -> Parameters:
    """Return the global parameters, when those who measured this have pushed their changes."""
    with served.connect(name) as server:
        return served.exchange.pull(server)
