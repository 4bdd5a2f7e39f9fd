"""What is simulated: small fits of all kinds, drawn from a number, and what they should end
with.
"""

import random
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from compss_train import BlockedTensor, BufferSpec, DistributedTrainer, Merge, PartialShuffle
from compss_train.callbacks import EarlyStopping
from compss_train.engines import Engine
from compss_train.training.callback import Callback
from tests.helpers.models import awkward_net, classification

SCENARIOS = 97
"""Number of different fits without a parameter server."""
SERVED = 16
"""Number of different fits with one."""

NESTEROV = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
PLAIN = {"shuffle", "merge", "every", "unit"}
"""The options of a synchronous fit and its ``Merge`` that keeps nothing but its workers'
optimizers.
"""

SAMPLES = 32


def ledger() -> nn.Module:
    """A network that counts how often each sample is trained: its weights, with the loss and
    optimizer below.
    """
    net = nn.Linear(SAMPLES, 1, bias=False)
    nn.init.zeros_(net.weight)
    return net


def negative_mean(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return -output.mean() + 0 * target.float().mean()


def half_each_epoch(epoch: float) -> float:
    return 0.5**epoch


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A fit, and the checkpoints that it writes."""

    net: Literal["ledger", "awkward"]
    workers: int
    processes: int
    shares_memory: bool
    blocks: int
    batch_size: int
    epochs: int
    options: dict[str, Any] = field(default_factory=dict)
    validated: bool = False
    patience: int | None = None
    scheduled: bool = False
    optimizer: str = "adam"
    every: int = 1
    keep: int = 2

    @property
    def reproducible(self) -> bool:
        """Whether the docs promise the same bits on every engine, after any fault."""
        return bool(self.options["merge"] == "synchronous" or self.options.get("quorum") == 1)

    @property
    def served(self) -> bool:
        """Whether messages travel."""
        return bool(self.options["merge"] == "parameter_server")

    @property
    def fit_options(self) -> dict[str, Any]:
        """The options of ``fit``, with those of its ``Merge`` in one."""
        merging = {
            each.name: self.options[each.name]
            for each in fields(Merge)
            if each.name in self.options
        }
        others = {name: value for name, value in self.options.items() if name not in merging}
        return {**others, "merge": Merge(self.options["merge"], **merging)}

    @property
    def checkpoint(self) -> dict[str, Any]:
        """The options of its checkpoints."""
        return {
            "every": self.every,
            "keep": self.keep,
            "best": "val_loss" if self.validated else None,
        }

    def trainer(self, engine: Engine) -> DistributedTrainer:
        trainer = DistributedTrainer(self.workers, engine=engine, seed=5, threads=1)
        schedule = {"schedule": half_each_epoch} if self.scheduled else {}
        if self.net == "ledger":
            trainer.build(
                ledger(), {"optimizer": "sgd", "lr": float(self.batch_size)}, negative_mean
            )
        else:
            trainer.build(
                awkward_net(),
                {"optimizer": self.optimizer, "lr": 0.01},
                "cross_entropy",
                "accuracy",
                **schedule,
            )
        return trainer

    def fit(self, trainer: DistributedTrainer, callbacks: list[Callback], **more: Any) -> None:
        x, y = data_of(self.net)
        shape = self.blocks, 1
        stopping = (
            []
            if self.patience is None
            else [EarlyStopping("val_loss", patience=self.patience, min_delta=1.0)]
        )
        trainer.fit(
            BlockedTensor.from_array(x, shape),
            BlockedTensor.from_array(y, shape),
            num_epochs=self.epochs,
            batch_size=self.batch_size,
            callbacks=[*stopping, *callbacks],
            validation_data=(x[:8], y[:8]) if self.validated else None,
            progress=False,
            **self.fit_options,
            **more,
        )


@cache
def data_of(net: str) -> tuple[Any, Any]:
    if net == "ledger":
        return np.eye(SAMPLES, dtype=np.float32), np.zeros((SAMPLES, 1), np.float32)
    return classification(samples=30)


def number_of(seed: int) -> int:
    """Return the number of the scenario that a seed simulates."""
    return SCENARIOS + seed // 8 % SERVED if seed % 8 == 7 else seed % SCENARIOS


@cache
def scenario_of(number: int) -> Scenario:
    draw = random.Random(f"scenario {number}")
    if number >= SCENARIOS:
        return replace(_ledger_scenario(draw), options={"merge": "parameter_server"})
    # Draws of their own leave the scenarios of the seeds in test_found.py as they were.
    if draw.random() < 0.5:
        scenario = _ledger_scenario(draw)
    else:
        scenario = _with_more(_awkward_scenario(draw), random.Random(f"more of scenario {number}"))
    return _with_quorum(scenario, random.Random(f"quorum of scenario {number}"))


def _ledger_scenario(draw: random.Random) -> Scenario:
    """All workers have as many samples in each round, so that their votes are exact."""
    workers = draw.choice([1, 2, 4])
    merge: dict[str, Any] = draw.choice(
        [
            {"merge": "synchronous"},
            {"merge": "synchronous", "every": 2},
            {"merge": "synchronous", "unit": "blocks"},
            {"merge": "commutative"},
            {"merge": "commutative"},
            {"merge": "commutative", "unit": "blocks"},
        ]
    )
    return Scenario(
        net="ledger",
        workers=workers,
        blocks=workers * draw.choice([1, 2]),
        batch_size=draw.choice([4, 8]),
        options={**merge, "shuffle": draw.choice([None, "blocks", "total"])},
        **_common(draw),
    )


def _awkward_scenario(draw: random.Random) -> Scenario:
    options: dict[str, Any] = {"shuffle": draw.choice([None, "blocks", "total"])}
    if draw.random() < 0.2:
        options |= {"merge": "commutative", "rule": draw.choice(["weighted", "halving"])}
    else:
        options |= {"merge": "synchronous", **_merging(draw), **_refinement(draw)}
    validated = draw.random() < 0.3
    patience = draw.choice([1, 2]) if validated and draw.random() < 0.5 else None
    common = _common(draw)
    if patience is not None:
        common["epochs"] = patience + 2  # it stops before the last one
    return Scenario(
        net="awkward",
        workers=draw.randint(1, 4),
        blocks=draw.randint(4, 6),
        batch_size=draw.randint(4, 9),
        options=options,
        validated=validated,
        patience=patience,
        scheduled=draw.random() < 0.3,
        optimizer=draw.choice(["adam", "sgd", "rmsprop"]),
        **common,
    )


def _with_more(scenario: Scenario, draw: random.Random) -> Scenario:
    """Add what workers or merges keep from round to round, and see that there are several rounds
    then.
    """
    if scenario.options["merge"] == "commutative":
        options = {**scenario.options, **_commutative_refinement(draw, scenario)}
        return replace(scenario, epochs=max(2, scenario.epochs), options=options)
    options = {**scenario.options, **_samples(draw)}
    if set(options) == PLAIN:
        return scenario
    every = options["every"] = options["every"] or 1
    least = every + 1 if options["unit"] == "epochs" else 2
    return replace(scenario, epochs=max(least, scenario.epochs), options=options)


def _with_quorum(scenario: Scenario, draw: random.Random) -> Scenario:
    """Have workers merge alone, all together, or some of them, and then be late where no checkpoint
    is due.
    """
    options = scenario.options
    if options["merge"] != "commutative" or options.get("rule") == "halving":
        return scenario
    quorum = draw.choice([0.25, 0.75, 1] if "outer_optimizer" in options else [0, 0, 0.25, 0.75, 1])
    scenario = replace(scenario, options={**options, "quorum": quorum})
    if quorum in (0, 1) or scenario.patience is not None:
        return scenario
    # So that the law of the ledger is exact.
    options = {**scenario.options, "shuffle": None, "unit": "epochs"}
    return replace(scenario, workers=2, blocks=4, processes=3, epochs=6, every=4, options=options)


def _commutative_refinement(draw: random.Random, scenario: Scenario) -> dict[str, Any]:
    if scenario.options["rule"] == "halving":
        return {}
    return draw.choice([{}, {"outer_optimizer": NESTEROV}, {"dtype": "int8"}])


def _samples(draw: random.Random) -> dict[str, Any]:
    """Draw in which order the samples of a worker come."""
    return draw.choice(
        [
            {},
            {},
            {"shuffle": PartialShuffle(7)},
            {"shuffle": PartialShuffle(8, pools=2)},
            {"shuffle": "blocks", "buffer": BufferSpec("FIRO", 9)},
        ]
    )


def _merging(draw: random.Random) -> dict[str, Any]:
    every = draw.choice([0, 1, 1, 2])
    unit = "epochs" if every == 0 else draw.choice(["epochs", "epochs", "blocks", "batches"])
    return {"every": every, "unit": unit}


def _refinement(draw: random.Random) -> dict[str, Any]:
    return draw.choice(
        [
            {},
            {},
            {"outer_optimizer": NESTEROV},
            {"averaging": "ema"},
            {"averaging": "ema", "averaging_unit": "steps"},
            {"optimizer_state": "average"},
            {"optimizer_state": "reset"},
            {"dtype": "bf16"},
        ]
    )


def _common(draw: random.Random) -> dict[str, Any]:
    return {
        "processes": draw.randint(1, 3),
        "shares_memory": draw.random() < 0.5,
        "epochs": draw.randint(1, 3),
        "every": draw.choice([1, 1, 2]),
        "keep": draw.choice([1, 2]),
    }
