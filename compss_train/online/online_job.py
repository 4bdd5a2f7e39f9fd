"""What all workers of an online fit share: its options, and which samples and batches are whose."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from compss_train.data.collating import in_tensors
from compss_train.engines import nodes
from compss_train.model.schedule import Schedule
from compss_train.net import Address, sockets
from compss_train.online.intake import NUMBERS
from compss_train.online.options import OnlineOptions, Pairing
from compss_train.online.routing import Routing, StreamKeys
from compss_train.training.hyperparameters import SetValues
from compss_train.worker.batches import Batch
from compss_train.worker.server_exchange import ServerAddress


@dataclass(frozen=True, kw_only=True)
class OnlineJob:
    """What all workers of an online fit share."""

    coordinator: Address
    keys: StreamKeys
    """The keys that the workers' receivers require of streams."""
    host: str | None
    """The host of the address for senders, or ``None``."""
    server_address: ServerAddress
    """The global parameters."""
    num_workers: int
    options: OnlineOptions
    seed: int
    schedule: Schedule | None = None
    """The learning rates by batches, if they change."""
    continues_average: bool = False
    """Whether an average by steps is there from the start, kept by an earlier fit."""
    counts_inputs: bool = False
    """Whether workers report how many samples of each simulation are in their buffers."""
    set_values: SetValues | None = None
    """The hyperparameters that were set before the fit, if any."""
    by_sample: bool = False
    """Whether workers report the losses of samples."""
    lockstep: bool = False
    """Whether simulations wait for the workers."""

    @property
    def paired(self) -> bool:
        """Whether batches are pairs of time steps."""
        return self.options.pairing is not None

    def listening_address(self, local_host: str) -> str | None:
        """Return the address at which a worker listens for streams, or ``None`` for a socket file.

        ``local_host`` is this machine's address as the coordinator's machine sees it. Senders on
        other machines can reach that, unless it is the loopback interface: such a worker listens
        where the coordinator does.
        """
        if self.host is None and self.coordinator.url.startswith(sockets.PRIVATE):
            return None
        if self.host is None or nodes.is_loopback(self.host) or not nodes.is_loopback(local_host):
            return f"tcp://{local_host}:*"
        return f"tcp://{self.host}:*"

    @property
    def routing(self) -> Routing:
        """Which worker gets which sample."""
        return Routing(self.num_workers, whole=self.paired)

    def make_batch(
        self, drawn: Any, worker: int, position: int, *, pairing: Pairing | None = None
    ) -> Batch:
        """Return a batch of what the worker's buffer gave; the position is its number.

        ``pairing`` is the worker's own copy of the function.
        """
        if pairing is None:
            x = drawn["x"]
            y = drawn.get("y")
            simulations, steps = drawn[NUMBERS].T
        else:
            result = pairing(*drawn)
            parts = result if isinstance(result, tuple) and len(result) < 3 else (result,)
            x = in_tensors(parts[0], "pairing")
            y = in_tensors(parts[1], "pairing") if len(parts) > 1 else None
            simulations = np.stack([time_step.simulation for time_step in drawn], 1)
            steps = np.stack([time_step.step for time_step in drawn], 1)
        return Batch(0, worker, position, x=x, y=y, simulations=simulations, steps=steps)
