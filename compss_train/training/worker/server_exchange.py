"""Exchanging parameters by way of a parameter server, layer by layer, so that nobody waits for anybody.

A layer's weights are one key, which changes are added to. Additions commute, so that in double precision
the order of arrival decides no more than which way a tie is rounded. Statistics (floating buffers, such as
BatchNorm's variances) and integers cannot be added up like this: a change against a base that is no longer there
turns a variance negative, and two workers that raise a counter raise it twice. Of these a second key holds a row a
worker, what that worker had last, which only it changes. Their global values are the mean of the rows, by the
workers' shares, and of integers the maximum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from compss_train.data.block import Block
from compss_train.data.reading import FilePart
from compss_train.model.parameters import Parameters
from compss_train.model.training_spec import TrainingSpec
from compss_train.parameter_server import ParameterServer
from compss_train.training.worker.shard import Shard
from compss_train.training.worker.train import WorkerState, train


@dataclass(frozen=True)
class Layer:
    """The parameters of one module by name, those that are added up and those that have a row a worker."""

    name: str
    added: tuple[str, ...]
    by_worker: tuple[str, ...]

    @property
    def weights(self) -> str:
        """The key of what is added up."""
        return f"{self.name}: weights"

    @property
    def rows(self) -> str:
        """The key of the rows: the workers' shares, and then an array for each name."""
        return f"{self.name}: rows"


@dataclass(frozen=True, eq=False)
class Exchange:
    """How a model's parameters lie on a parameter server, and how they get there and back.

    The first layers have the highest priority: the next forward pass begins with them.
    """

    layers: tuple[Layer, ...]
    dtypes: dict[str, np.dtype[Any]]
    """Of all parameters, in state_dict order."""
    num_workers: int

    @classmethod
    def of(cls, parameters: Parameters, statistics: Collection[str], num_workers: int) -> Self:
        """Return the exchange of parameters like these; ``statistics`` names the floating buffers."""

        def layer(name: str, members: list[str]) -> Layer:
            added = [m for m in members if _is_floating(parameters[m].dtype) and m not in statistics]
            return Layer(name, tuple(added), tuple(m for m in members if m not in added))

        modules: dict[str, list[str]] = {}
        for name in parameters:
            modules.setdefault(name.rpartition(".")[0], []).append(name)
        layers = tuple(layer(name, members) for name, members in modules.items())
        return cls(layers, {name: array.dtype for name, array in parameters.items()}, num_workers)

    def publish(self, server: ParameterServer, parameters: Parameters) -> None:
        """Set the global parameters on a server that has none yet; done once, before any worker comes."""
        for _, layer in self._by_urgency():
            if layer.added:
                server.init(layer.weights, [_wide(parameters[name]) for name in layer.added])
            if layer.by_worker:
                rows = [np.repeat(_wide(parameters[name])[None], self.num_workers, 0) for name in layer.by_worker]
                server.init(layer.rows, [np.zeros(self.num_workers), *rows])

    def push_change(
        self, server: ParameterServer, worker: int, base: Parameters, trained: Parameters, share: float
    ) -> None:
        """Push what a worker made of its base; ``share`` is how much it counts, of 1 for all workers together.

        Returns before all is sent. Without a share the worker has no vote, and nothing is pushed.
        """
        if not share:
            return
        for priority, layer in self._by_urgency():
            if layer.added:
                changes = [share * (_wide(trained[name]) - _wide(base[name])) for name in layer.added]
                server.push(layer.weights, changes, priority)
        for priority, layer in self._by_urgency():
            if layer.by_worker:
                self._replace_row(server, worker, layer, trained, share, priority)

    def _replace_row(
        self, server: ParameterServer, worker: int, layer: Layer, trained: Parameters, share: float, priority: int
    ) -> None:
        before = [np.asarray(array) for array in server.pull(layer.rows, priority=priority)]
        after = [np.array(share), *(_wide(trained[name]) for name in layer.by_worker)]
        changes = [np.zeros_like(array) for array in before]
        for change, old, new in zip(changes, before, after, strict=True):
            change[worker] = new - old[worker]
        server.push(layer.rows, changes, priority)

    def pull(self, server: ParameterServer) -> Parameters:
        """Return the global parameters as they are by now, which a worker goes on from."""
        pulled: Parameters = {}
        for priority, layer in self._by_urgency():
            if layer.added:
                weights = server.pull(layer.weights, priority=priority)
                pulled |= zip(layer.added, map(np.asarray, weights), strict=True)
            if layer.by_worker:
                shares, *rows = map(np.asarray, server.pull(layer.rows, priority=priority))
                for name, array in zip(layer.by_worker, rows, strict=True):
                    pulled[name] = _merged(shares, array, self.dtypes[name])
        return {name: pulled[name].astype(dtype) for name, dtype in self.dtypes.items()}

    def _by_urgency(self) -> Iterator[tuple[int, Layer]]:
        return zip(range(len(self.layers), 0, -1), self.layers, strict=True)


def _is_floating(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "fc"


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array in double precision, where the difference of two of single precision is exact."""
    return array.astype(np.result_type(array.dtype, np.float64) if _is_floating(array.dtype) else np.int64)


def _merged(shares: NDArray[Any], rows: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the mean of the rows of those that have voted, or the maximum; before any has, what all began with."""
    voting = shares > 0
    if not voting.any():
        return np.asarray(rows[0])
    if not _is_floating(dtype):
        return np.asarray(rows[voting].astype(dtype).max(axis=0))
    # A single vote is 1.0 exactly, so that one worker's statistics are those of a plain loop.
    return np.asarray(np.tensordot(shares[voting] / shares[voting].sum(), rows[voting], axes=1))


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
    training_spec: TrainingSpec,
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
    trained, after, measured = train(training_spec, parameters, state, xs, others, shard, device)
    with served.connect(shard.name) as server:
        served.exchange.push_change(server, worker, parameters, trained, measured["given"] / samples)
        return served.exchange.pull(server), after, measured


def read(served: Served, measured: Sequence[dict[str, Any]], name: str) -> Parameters:
    """Return the global parameters, when those who measured this have pushed their changes."""
    with served.connect(name) as server:
        return served.exchange.pull(server)
