"""What a merge costs the busiest node: bytes on its link, and seconds of its processor.

Both are measured on Ray, with a worker on each node; nodes are network namespaces.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import _common as common
import numpy as np
from _nodes import link_bytes, nodes_of, ray_in

ROUNDS = 24
"""Rounds of a measured fit, a merge each."""
FIRST_ROUNDS = 3
"""Rounds that are not measured: processes start, and blocks travel."""
BATCH_SIZE = 16
"""Samples that a worker trains in a round: few, so that merging is what takes time."""
IDLE_SECONDS = 4.0
"""How long the processor's seconds of nodes without work are measured."""


@dataclass(frozen=True)
class Busiest:
    """What the busiest node of some pays for a merge."""

    nodes: int
    megabytes: float
    """Sent or received, whichever is more."""
    seconds: float
    """Of its processor, for all that is not training."""


@dataclass(frozen=True)
class MergeCosts:
    """The cost of a merge by the number of nodes: measured, or computed from what was measured."""

    measured: Sequence[Busiest]
    parameters: float
    """Megabytes of the parameters."""

    @cached_property
    def _times_all_reduce(self) -> float:
        """Bytes with the most nodes, over those of all-reduce."""
        largest = self.measured[-1]
        return largest.megabytes / all_reduce(self.parameters, largest.nodes)

    @cached_property
    def _line(self) -> tuple[float, float]:
        """Slope and start of the line through the processor's seconds by nodes."""
        numbers = [cost.nodes for cost in self.measured]
        slope, start = np.polyfit(numbers, [cost.seconds for cost in self.measured], 1)
        return max(0.0, float(slope)), float(start)

    def of(self, nodes: int) -> Busiest:
        """Return the cost with so many nodes.

        Where it was not measured, bytes are as many times those of all-reduce as with the most
        nodes, and the processor's seconds are on the line through the measured ones.
        """
        if nodes == 1:
            return Busiest(1, 0.0, 0.0)
        for cost in self.measured:
            if cost.nodes == nodes:
                return cost
        slope, start = self._line
        megabytes = self._times_all_reduce * all_reduce(self.parameters, nodes)
        return Busiest(nodes, megabytes, start + slope * nodes)


def all_reduce(megabytes: float, nodes: int) -> float:
    """Return what a node sends, and receives, in a ring all-reduce."""
    return 2 * (nodes - 1) / nodes * megabytes


def measure_merges(
    network: str, optimizer: Mapping[str, Any], merge: Mapping[str, Any], nodes: Sequence[int]
) -> MergeCosts:
    """Measure merges of a network, with these options of ``Merge`` and numbers of nodes."""
    measured = [_measure(network, optimizer, merge, number) for number in sorted(nodes)]
    size = sum(tensor.nbytes for tensor in common.network(network, 0).state_dict().values())
    return MergeCosts(measured, size / 1e6)


def _measure(
    network: str, optimizer: Mapping[str, Any], merge: Mapping[str, Any], number: int
) -> Busiest:
    with nodes_of(number) as nodes, common.threads_of_children(1), ray_in(nodes) as fit:
        costs = fit(merge_often, network, dict(optimizer), dict(merge), nodes.switch, nodes.nodes)
    return Busiest(number, costs["megabytes"], costs["seconds"])


def merge_often(
    network: str,
    optimizer: dict[str, Any],
    merge: dict[str, Any],
    switch: str,
    nodes: list[str],
) -> dict[str, float]:
    """Fit with a merge after each batch, and return what each cost the busiest node."""
    from compss_train import Merge  # not at the top: the program that starts this needs no engine
    from compss_train.callbacks import Callback

    usages: list[Usage] = []

    class AtRounds(Callback):
        """Notes what nodes have used by the end of each round."""

        def on_round_end(self, trainer: Any, record: dict[str, Any]) -> None:
            usages.append(Usage.now(switch, nodes))

    samples = BATCH_SIZE * len(nodes)
    images = common.load_images(samples)
    with common.warm_trainer(
        common.network(network, 0),
        optimizer,
        workers=len(nodes),
        engine="ray",
        warm=(images.x, images.y),
    ) as trainer:
        before = Usage.now(switch, nodes)
        time.sleep(IDLE_SECONDS)
        idle = (Usage.now(switch, nodes).seconds - before.seconds) / IDLE_SECONDS
        x, y = images.blocked(len(nodes))
        common.fit(
            trainer,
            x,
            y,
            epochs=ROUNDS,
            batch_size=BATCH_SIZE,
            shuffle=None,
            merge=Merge(**merge),
            callbacks=[AtRounds()],
        )
    # The last round waits for its merge, unlike those before.
    first, last = usages[FIRST_ROUNDS], usages[-2]
    merges = len(usages) - 2 - FIRST_ROUNDS
    seconds = last.seconds - first.seconds - idle * (last.clock - first.clock)
    megabytes = np.maximum(last.sent - first.sent, last.received - first.received)
    return {
        "megabytes": float(megabytes.max()) / merges,
        "seconds": float(seconds.max()) / merges,
    }


@dataclass(frozen=True, eq=False)
class Usage:
    """What each node has used so far."""

    clock: float
    seconds: np.ndarray[Any, np.dtype[np.float64]]
    """Of the processor, by all that runs in the node."""
    sent: np.ndarray[Any, np.dtype[np.float64]]
    """Megabytes."""
    received: np.ndarray[Any, np.dtype[np.float64]]

    @classmethod
    def now(cls, switch: str, nodes: Sequence[str]) -> Usage:
        """Return what nodes whose links meet in a switch have used until now."""
        sent, received = link_bytes(switch)
        return cls(
            clock=time.perf_counter(),
            seconds=np.array([_processor_seconds(node) for node in nodes]),
            sent=np.array(sent) / 1e6,
            received=np.array(received) / 1e6,
        )


def _processor_seconds(node: str) -> float:
    """Return the processor's seconds of the processes that run in a namespace."""
    command = ["ip", "netns", "pids", node]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    ticks = 0
    for process in listed.split():
        with suppress(OSError):  # one that has just ended
            fields = Path("/proc", process, "stat").read_text().rpartition(")")[2].split()
            user, system = fields[11:13]
            ticks += int(user) + int(system)
    return ticks / os.sysconf("SC_CLK_TCK")
