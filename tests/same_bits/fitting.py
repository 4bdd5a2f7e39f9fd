"""One fit of a kind, and all its bits: parameters, what the history measured, an evaluation and
predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer, Engine, Merge
from compss_train._utils.nested import leaves
from compss_train.reports.records import measured_names
from tests.same_bits.material import X, Y, awkward

Bits = dict[str, np.ndarray]
ADAM = {"optimizer": "adam", "lr": 0.01}


@dataclass(frozen=True)
class Place:
    """Where a kind runs."""

    engine: Engine | str
    folder: Path
    """A new one, for its files."""
    in_order: bool = True
    """Whether workers always arrive in the same order, so that merges on arrival have the same bits
    every time.
    """

    def workers(self, number: int, *, by_arrival: bool) -> int:
        """Return the number of workers: one where their order would decide."""
        return 1 if by_arrival and not self.in_order else number


def blocks(array: Any, number: int = 7) -> BlockedTensor:
    return BlockedTensor.from_array(array, (number, 1))


def in_blocks(folder: Path) -> tuple[Any, ...]:
    return blocks(X), blocks(Y)


def small_fit(
    place: Place,
    *,
    net: Callable[[], nn.Module | Mapping[str, nn.Module]] = awkward,
    optimizer: Any = ADAM,
    loss: Any = "cross_entropy",
    metric: Any = "accuracy",
    workers: int = 3,
    by_arrival: bool = False,
    build: Mapping[str, Any] | None = None,
    data: Callable[[Path], Sequence[Any]] = in_blocks,
    **options: Any,
) -> Bits:
    """Train a small network; all of these are options of ``fit`` and its ``Merge`` unless they are
    named above.
    """
    trainer = trainer_of(place, workers=place.workers(workers, by_arrival=by_arrival))
    trainer.build(net(), optimizer, loss, metric, **(build or {}))
    given = data(place.folder)
    fit(trainer, *given, **options)
    return bits_of(trainer, *given)


def trainer_of(place: Place, workers: int = 3) -> DistributedTrainer:
    return DistributedTrainer(workers, engine=place.engine, seed=7, threads=1)


def fit(trainer: DistributedTrainer, x: Any, y: Any = None, **options: Any) -> None:
    batches = {} if "num_batches_per_worker" in options else {"batch_size": 5}
    merging = {each.name: options.pop(each.name) for each in fields(Merge) if each.name in options}
    options["merge"] = Merge(options.get("merge"), **merging)
    trainer.fit(x, y, **{"num_epochs": 2, "progress": False, **batches, **options})


def bits_of(trainer: DistributedTrainer, x: Any = X, y: Any = Y) -> Bits:
    """Return all that a trainer has computed, and what it makes of these samples."""
    found: Bits = {f"parameter {name}": array for name, array in trainer.get_parameters().items()}
    found |= history_bits(trainer.history)
    with suppress(ValueError, TypeError):  # of steps of one's own that measure nothing
        found |= {
            f"evaluated {name}": np.array(value) for name, value in trainer.evaluate(x, y).items()
        }
    with suppress(ValueError):  # of several networks, which have no outputs
        found |= {
            f"predicted {n}": np.array(each) for n, each in enumerate(leaves(trainer.predict(x)))
        }
    return found


def history_bits(history: Sequence[Mapping[str, Any]]) -> Bits:
    """Return each measure of the rounds, and how many samples they trained."""
    found: dict[str, list[Any]] = {}
    for record in history:
        for name in (*measured_names(record), "samples", "lr"):
            if record.get(name) is not None:
                found.setdefault(f"history {name}", []).append(record[name])
    return {name: np.array(values) for name, values in found.items()}
