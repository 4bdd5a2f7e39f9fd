"""Exchange of parameters through a parameter server, layer by layer, without waiting.

The weights of a layer are one key, to which changes are added. Additions commute, so that in double
precision the order of arrival only affects the rounding of ties. Floating buffers (such as
BatchNorm's variances) and integers cannot be merged by adding changes: a change relative to an
outdated base can make a variance negative, and two workers that increment a counter would increment
it twice. For these, a second key holds one row for each worker with its latest values, which only
that worker changes. Their global value is the mean of the rows weighted by the workers' shares, and
for integers the maximum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from compss_train import parameter_server
from compss_train.model.commutative_updates import change
from compss_train.model.parameters import Parameters, check_outer_step, has_same_bits
from compss_train.model.training_spec import TensorNames
from compss_train.parameter_server import ParameterServer
from compss_train.worker.merging.buffers import NO_BUFFER_RULES, BufferRules


@dataclass(frozen=True)
class Layer:
    """The parameters of one module under a key of the server, by name."""

    key: str
    names: tuple[str, ...]
    priority: int
    stepped: bool = False
    """Whether the server's optimizer steps with the changes instead of adding them."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """The layout of a model's parameters on a parameter server, with methods to push and pull them.

    The first layers have the highest priority, as the next forward pass starts with them.
    """

    weights: tuple[Layer, ...]
    """The parameters that changes are added to."""
    rows: tuple[Layer, ...]
    """Those with a row for each worker; the first array of a key has the workers' shares."""
    dtypes: dict[str, np.dtype[Any]]
    """The dtypes of all parameters, in state_dict order."""
    shapes: dict[str, tuple[int, ...]]
    """The shapes of all parameters."""
    num_workers: int
    buffers: BufferRules
    """How buffers merge that are no statistics."""
    aliases: Mapping[str, str]
    """Additional names of tensors, each with its first name.

    Only the first name is on the server: pulls of one tensor under two keys could differ by another
    worker's change.
    """

    @classmethod
    def of(
        cls,
        parameters: Parameters,
        names: TensorNames,
        num_workers: int,
        *,
        stepped: bool = False,
        buffers: BufferRules = NO_BUFFER_RULES,
    ) -> Self:
        """Return the exchange for parameters of this structure.

        With ``stepped``, the server's optimizer steps the weights. A module's frozen weights are
        then a separate layer: weight decay would move them.
        """
        modules: dict[str, list[str]] = {}
        added = {
            name
            for name, array in parameters.items()
            if array.dtype.kind in "fc" and name not in names.buffers
        }
        for name in parameters:
            if name not in names.aliases:
                module, _, _ = name.rpartition(".")
                if stepped and name in added and name not in names.weights:
                    module = f"{module}: frozen"
                modules.setdefault(module, []).append(name)
        weights = list[Layer]()
        rows = list[Layer]()
        for number, (module, members) in enumerate(modules.items()):
            priority = len(modules) - number
            added_names = tuple(name for name in members if name in added)
            row_names = tuple(name for name in members if name not in added)
            if added_names:
                steps = stepped and any(name in names.weights for name in added_names)
                weights.append(Layer(f"{module}: weights", added_names, priority, steps))
            if row_names:
                rows.append(Layer(f"{module}: rows", row_names, priority))
        dtypes = {name: array.dtype for name, array in parameters.items()}
        return cls(
            tuple(weights),
            tuple(rows),
            dtypes,
            {name: array.shape for name, array in parameters.items()},
            num_workers=num_workers,
            buffers=buffers,
            aliases=dict(names.aliases),
        )

    @property
    def of_averages(self) -> Self:
        """The exchange for averages of the parameters by steps, beside these on the same server.

        They merge as parameters do without an outer optimizer, and have no rows.
        """
        layers = tuple(
            Layer(f"averaged {layer.key}", layer.names, layer.priority) for layer in self.weights
        )
        first_names = {name for layer in layers for name in layer.names}
        aliases = {alias: name for alias, name in self.aliases.items() if name in first_names}
        names = first_names.union(aliases)
        return replace(
            self,
            weights=layers,
            rows=(),
            dtypes={name: dtype for name, dtype in self.dtypes.items() if name in names},
            shapes={name: shape for name, shape in self.shapes.items() if name in names},
            aliases=aliases,
        )

    def publish(
        self,
        server: ParameterServer,
        parameters: Parameters,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """Initialize the global parameters on an empty server, before any worker connects.

        With what ``save`` returned it continues from that, in double precision and with the
        optimizer's state.
        """
        if saved is not None:
            for layer in (*self.weights, *self.rows):
                server.load(layer.key, saved[layer.key], optimized=layer.stepped)
            return
        for layer in self.weights:
            weights = [_wide(parameters[name]) for name in layer.names]
            server.init(layer.key, weights, optimized=layer.stepped)
        for layer in self.rows:
            values = [_row(parameters[name]) for name in layer.names]
            rows = [np.repeat(value[None], self.num_workers, 0) for value in values]
            server.init(layer.key, [np.zeros(self.num_workers), *rows], optimized=False)

    def save(self, server: ParameterServer) -> dict[str, Any]:
        """Return what the server holds by key; consistent if no worker pushes meanwhile."""
        return {layer.key: server.save(layer.key) for layer in (*self.weights, *self.rows)}

    def push_change(
        self,
        server: ParameterServer,
        worker: int,
        base: Parameters,
        trained: Parameters,
        share: float,
    ) -> None:
        """Push the change of a worker relative to its base, weighted by ``share``.

        All shares sum to 1; with a share of 0 nothing is pushed. A server with an optimizer
        receives the negative change, as a gradient. Returns before everything is sent.
        """
        if not share:
            return
        for layer in self.weights:
            before, after = (trained, base) if layer.stepped else (base, trained)
            changes = [
                np.asarray(share * change(before[name], after[name])) for name in layer.names
            ]
            server.push(layer.key, changes, layer.priority)
        for layer in self.rows:
            rows = [np.asarray(array) for array in server.pull(layer.key, priority=layer.priority)]
            new_row = [np.array(share)]
            new_row += [_row(trained[name]) for name in layer.names]
            changes = [np.zeros_like(array) for array in rows]
            for of_rows, old, new in zip(changes, rows, new_row, strict=True):
                of_rows[worker] = new - old[worker]
            server.push(layer.key, changes, layer.priority)

    def pull(self, server: ParameterServer) -> Parameters:
        """Return the current global parameters.

        Raises ``DivergedError`` if steps of the server's optimizer made them NaN or infinite.
        """
        pulled: Parameters = {}
        for layer in self.weights:
            weights = server.pull(layer.key, priority=layer.priority)
            pulled |= zip(layer.names, map(np.asarray, weights), strict=True)
        for layer in self.rows:
            shares, *rows = map(np.asarray, server.pull(layer.key, priority=layer.priority))
            for name, array in zip(layer.names, rows, strict=True):
                pulled[name] = self._merged(name, shares, array)
        pulled |= {alias: pulled[name] for alias, name in self.aliases.items()}
        stepped = any(layer.stepped for layer in self.weights)
        # The error says more than the warning.
        with np.errstate(over="ignore" if stepped else "warn"):
            narrow = {name: pulled[name].astype(dtype) for name, dtype in self.dtypes.items()}
        if stepped:
            added = {name for layer in self.weights for name in layer.names}
            check_outer_step({name: narrow[name] for name in narrow if name in added})
        return narrow

    def _merged(self, name: str, shares: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
        """Return the global value of an array that has a row for each worker."""
        dtype = self.dtypes[name]
        if dtype.kind in "fc":
            wide = np.result_type(dtype, np.float64)
            rows = rows.view(wide).reshape(len(rows), *self.shapes[name])
        if name in self.buffers.worker:
            return np.asarray(rows[0])
        active = shares > 0
        if name in self.buffers.maximum and active.any():
            return np.asarray(rows[active].max(axis=0))
        return _merged(shares, rows, dtype)


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array in double precision, which has exact differences of single precision."""
    if array.dtype.kind in "fc":
        return array.astype(np.result_type(array.dtype, np.float64))
    return array.astype(np.int64)


def _row(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array as rows have it: floats as their bits, since nothing adds to infinities."""
    wide = _wide(array)
    return wide.reshape(-1).view(np.int64) if wide.dtype.kind in "fc" else wide


def _merged(shares: NDArray[Any], rows: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the weighted mean or the maximum of the rows with a share.

    Without any, returns the initial values.
    """
    active = shares > 0
    if not active.any():
        return np.asarray(rows[0])
    if dtype.kind not in "fc":
        return np.asarray(rows[active].astype(dtype).max(axis=0))
    first, *others = rows[active]
    if all(has_same_bits(first, other) for other in others):
        return np.asarray(first)
    # The weight of a single worker is exactly 1.0, so that its statistics are those of a plain
    # loop.
    return np.asarray(np.tensordot(shares[active] / shares[active].sum(), rows[active], axes=1))


@dataclass(frozen=True)
class ServerAddress:
    """The address, token and layout that a task needs to reach the parameters on a server."""

    address: str
    token: str = field(repr=False)
    exchange: Exchange
    averages: Exchange | None = None
    """The layout of the average of the parameters by steps, if one is kept."""

    def connect(
        self, name: str | None = None, *, generation: int = 0, timeout: float = 60.0
    ) -> ParameterServer:
        """Return a client.

        Repeated calls of a client that reconnects under the same name are executed once.
        """
        return parameter_server.connect(
            self.address, self.token, name=name, generation=generation, timeout=timeout
        )


def read_parameters(server_address: ServerAddress, measured: Sequence[Any]) -> Parameters:
    """Return the global parameters when all workers have pushed their changes.

    ``measured`` are their measurements, for which the task waits.
    """
    with server_address.connect() as server:
        return server_address.exchange.pull(server)
