"""The inputs of the simulations of a study, in order: what has begun, and what comes next."""

import hashlib
import json
from array import array
from collections.abc import Iterable
from contextlib import suppress
from copy import deepcopy
from typing import Any

import numpy as np
import torch

from compss_train.model.saved_state import sha256_of
from compss_train.model.value_encoding import to_json
from compss_train.online.input_statistics import InputStatistics

BEGUN = -1
"""The number of samples of a simulation that is not complete."""
FAILED = -2
"""The number of samples of one that was given up."""
SHOWN = 5
"""How many simulations a message names."""


class Inputs:
    """Iterates over inputs, and knows what has become of the simulation of each, from number 0.

    Inputs are not stored. A study that continues iterates over them again: ``resume`` compares
    their hashes.
    """

    def __init__(self, inputs: Iterable[Any]) -> None:
        self._iterator = iter(inputs)
        self.done = 0
        """How many simulations are complete."""
        self.failed = 0
        """How many were given up."""
        self.again: list[tuple[int, Any]] = []
        """The simulations of an earlier program that are to run again, with their inputs."""
        self.lost: list[str] = []
        """What messages call the first simulations that were given up, at most ``SHOWN``."""
        self.samples = array("q")
        """By simulation, its number of samples once it is complete; before ``BEGUN``."""
        self._hashes = array("q")
        """By simulation, the hash of its input."""
        self.statistics = InputStatistics()
        """Those of the inputs of simulations that have begun."""

    def next(self) -> tuple[int, Any]:
        """Return the next simulation and its input; raise ``StopIteration`` after the last one."""
        value = self._next_value()
        self._hashes.append(hash_of(value))
        self.statistics.add(value)
        self.samples.append(BEGUN)
        return len(self.samples) - 1, value

    def _next_value(self) -> Any:
        return own_copy(next(self._iterator))

    def end(self, simulation: int, samples: int) -> None:
        """Record a simulation's number of samples, also ``BEGUN`` (again) and ``FAILED``."""
        earlier_samples = self.samples[simulation]
        self.samples[simulation] = samples
        self.done += (samples >= 0) - (earlier_samples >= 0)
        self.failed += (samples == FAILED) - (earlier_samples == FAILED)

    def give_up(self, simulation: int, value: Any) -> None:
        """Record that a simulation was given up."""
        self.end(simulation, FAILED)
        if len(self.lost) < SHOWN:
            self.lost.append(f"simulation {simulation} of input {shown(value)}")

    def state_dict(self, incomplete: Iterable[int]) -> dict[str, Any]:
        """Return what ``resume`` needs; the ``incomplete`` simulations are to run again."""
        samples = np.array(self.samples, np.int64)
        samples[list(incomplete)] = BEGUN
        return {"samples": samples, "hashes": np.array(self._hashes)}

    def resume(self, saved: dict[str, Any]) -> None:
        """Iterate over the inputs of the simulations that had begun by ``state_dict``.

        Raises ``ValueError`` for other inputs.
        """
        for samples, known_hash in zip(saved["samples"], saved["hashes"], strict=True):
            try:
                simulation, value = self.next()
            except StopIteration:
                raise ValueError(
                    f"inputs= has {len(self.samples)} items, but {len(saved['samples'])} "
                    "simulations of the study have begun; give the same inputs, in the same order"
                ) from None
            if known_hash != self._hashes[-1]:
                raise ValueError(
                    f"the input of simulation {simulation} was another one than {shown(value)}; "
                    "give the same inputs, in the same order, or begin a new study"
                )
            self.end(simulation, int(samples))
            if samples == FAILED:
                self.give_up(simulation, value)
            if samples == BEGUN:
                self.again.append((simulation, value))


def own_copy(value: Any) -> Any:
    """Return a copy of an input, as programs may write over its arrays for the next one.

    What cannot be copied is returned itself.
    """
    with suppress(Exception):
        return deepcopy(value)
    return value


def hash_of(value: Any) -> int:
    """Return a hash of numbers, text, arrays and tensors, also in lists, tuples and dicts.

    It is the same in another process. The hash of anything else is 0.
    """
    tensors: dict[str, torch.Tensor] = {}
    try:
        text = json.dumps(to_json(value, "input", tensors), sort_keys=True)
        arrays = sha256_of({name: tensor.numpy() for name, tensor in tensors.items()})
    except (TypeError, RecursionError):
        return 0
    digest = hashlib.sha256(f"{text} {arrays}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True) or 1


def shown(value: Any) -> str:
    """Return an input as messages show it."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
