"""How large are errors if inputs are chosen while the network learns?

Five kinds of study, and two that no method was chosen on (``--held-out``). Printed are ratios to as
many uniform inputs of the same seed: geometric means over the seeds, with their standard errors.
The first rows of a study are its scale: what 1.5 and 4 times as many uniform simulations gain.

This is no fit of ``fit_online``, which would take seconds to start and end for each of hundreds of
studies: it is a loop in one process, with the samplers, their table, the losses by sample and the
``Reservoir`` of the package. A simulation begins when the one before it ends, so that its input is
chosen without it. They take two thirds of the batches, the same number for each. Losses are never
late, and training waits for each choice. Seconds are of the processor, of one thread: on a quiet
machine those of the clock.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _input_studies import HELD_OUT, STEPS, STUDIES, Floats, Study
from _input_tables import UNIFORM, Rows, draw, print_rows
from numpy.typing import NDArray
from torch import nn

from compss_train import BreedInputs, InputSampler, OGASInputs, SpacedInputs
from compss_train.buffers import Reservoir
from compss_train.online.chosen_inputs import COPIES, ChosenInputs
from compss_train.online.inputs import Inputs
from compss_train.online.sample_losses import SampleLosses

WIDTH = 64
"""Width of the network's three hidden layers."""
BATCH = 64
RATE = 0.003
"""The learning rate at first; it falls to 0 as a cosine."""
FIRST = 10
"""Simulations before the first batch."""
SIMULATED = 2 / 3
"""The share of the batches during which simulations run."""
TIMES = 1.5, 4
"""Times as many uniform simulations, for the scale of a study."""
HELD_OUT_INPUTS = 1000
RESULTS = Path("runs/active-inputs.jsonl")
"""Studies that have run: a later call goes on."""
ALL_STEPS = range(1, STEPS + 1)


def spaced(study: Study, number: int, seed: int, uniform: float = 0.0) -> InputSampler:
    """Return the sampler ``SpacedInputs``."""

    def some_rows(value: Floats) -> NDArray[np.float32]:
        return study.network_inputs(value[None], study.compared_steps)

    return SpacedInputs(study.bounds, number, some_rows, uniform=uniform, seed=seed)


def mixed(study: Study, number: int, seed: int) -> InputSampler:
    """Return ``SpacedInputs`` half of which are uniform."""
    return spaced(study, number, seed, uniform=0.5)


def breed(study: Study, number: int, seed: int) -> InputSampler:
    """Return the sampler ``BreedInputs``, with its defaults."""
    return BreedInputs(study.bounds, number, seed=seed)


def ogas(study: Study, number: int, seed: int) -> InputSampler:
    """Return the sampler ``OGASInputs``, with its defaults."""
    return OGASInputs(study.bounds, number, seed=seed)


def sobol(study: Study, number: int, seed: int) -> list[Floats]:
    """Return inputs of a scrambled Sobol sequence."""
    from scipy.stats import qmc  # type: ignore[import-untyped]

    engine = qmc.Sobol(study.parameters, seed=seed)
    points = engine.random_base2((number - 1).bit_length())[:number]
    return list(qmc.scale(points, *np.transpose(study.bounds)))


def uniform(study: Study, number: int, seed: int) -> list[Floats]:
    """Return uniform inputs."""
    return list(study.uniform(number, seed))


Method = Callable[[Study, int, int], "InputSampler | list[Floats]"]
METHODS: dict[str, Method] = {
    UNIFORM: uniform,
    "sobol": sobol,
    "spaced": spaced,
    "mixed": mixed,
    "breed": breed,
    "ogas": ogas,
}


class Copies:
    """The network as of the last few draws: what ``table.predict`` asks."""

    def __init__(self, net: nn.Module) -> None:
        self._net = net
        self._states: list[dict[str, torch.Tensor]] = []
        self._is_new = False

    def renew(self) -> None:
        """Begin another draw."""
        self._is_new = False

    def __call__(self, x: Any, copies: int) -> NDArray[Any]:
        """Return the outputs of up to so many of the newest copies."""
        if not self._is_new:
            state = {name: value.clone() for name, value in self._net.state_dict().items()}
            self._states = [*self._states[1 - COPIES :], state]
            self._is_new = True
        inputs = torch.as_tensor(x)
        with torch.no_grad():
            outputs = [
                torch.func.functional_call(self._net, state, inputs)
                for state in self._states[-copies:]
            ]
        return torch.stack(outputs).numpy()


@dataclass(frozen=True)
class Planned:
    """A study that a method has to do."""

    name: str
    study: Study
    method: str
    times: float
    seed: int

    @property
    def key(self) -> dict[str, Any]:
        """What tells it apart in ``RESULTS``."""
        return {
            "study": self.name,
            "method": self.method,
            "times": self.times,
            "seed": self.seed,
            "simulations": self.study.simulations,
            "batches": self.study.batches,
        }


class Running:
    """A study that runs: simulations, a buffer and a network."""

    def __init__(self, planned: Planned) -> None:
        self.study = planned.study
        self.number = round(planned.times * self.study.simulations)
        torch.manual_seed(planned.seed)
        self.net = _network(self.study)
        self.losses = SampleLosses()
        self.buffer = Reservoir(self.number * STEPS, threshold=BATCH, seed=planned.seed)
        chosen = METHODS[planned.method](self.study, self.number, planned.seed)
        self.inputs: Inputs
        self._known: dict[int, Floats] = {}
        """The fields of simulations whose inputs are known from the start."""
        self.seconds_of_choices = 0.0
        if isinstance(chosen, InputSampler):
            predictor: Any = Copies(self.net)
            self.inputs = ChosenInputs(chosen, predictor, lambda _: None)
        else:
            self.inputs = Inputs(chosen)
            self._known = dict(enumerate(self.study.fields(np.stack(chosen))))

    def simulations(self) -> Iterator[None]:
        """Run simulations one after another; each ``next`` ends one and begins another."""
        for _ in range(self.number):
            began = time.process_time()
            if isinstance(self.inputs, ChosenInputs):
                self.inputs.report(0, self.losses.report())
            simulation, value = self.inputs.next()
            self.seconds_of_choices += time.process_time() - began
            yield
            self._end(simulation, value)

    def _end(self, simulation: int, value: Floats) -> None:
        fields = self._known.pop(simulation, None)
        if fields is None:
            (fields,) = self.study.fields(value[None])
        numbers = np.stack([np.full(STEPS, simulation), np.arange(STEPS)], 1)
        x = self.study.network_inputs(value[None], ALL_STEPS)
        y = fields.astype(np.float32)
        self.buffer.put_many({"x": x, "y": y, "numbers": numbers})
        self.inputs.end(simulation, STEPS)

    def train(self) -> None:
        """Train all batches, while simulations begin and end."""
        optimizer = torch.optim.Adam(self.net.parameters(), lr=RATE, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.study.batches)
        running = self.simulations()
        for _ in range(FIRST + 1):
            next(running, None)
        between = SIMULATED * self.study.batches / (self.number - FIRST)
        ends = (between * count for count in itertools.count(1))
        next_end = next(ends)
        for batch in range(self.study.batches):
            while batch >= next_end:
                next(running, None)
                next_end = next(ends)
            self._step(optimizer)
            schedule.step()

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        drawn = self.buffer.get_batch(BATCH)
        x, y = (torch.as_tensor(drawn[name]) for name in ("x", "y"))
        losses = (self.net(x) - y).square().mean(1)
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        if isinstance(self.inputs, ChosenInputs):
            numbers = np.asarray(drawn["numbers"])
            self.losses.add(losses.detach(), numbers[:, 0], numbers[:, 1])


def _network(study: Study) -> nn.Module:
    """Return an MLP from parameters and time to a field."""
    points = study.fields(study.uniform(1, 0)).shape[2]
    sizes = [study.parameters + 1, WIDTH, WIDTH, WIDTH]
    hidden = [part for pair in itertools.pairwise(sizes) for part in (nn.Linear(*pair), nn.SiLU())]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, points))


def errors_of(study: Study, net: nn.Module) -> Floats:
    """Return the root mean square error of each held-out simulation, of uniform inputs."""
    inputs = study.uniform(HELD_OUT_INPUTS, 2**31)
    x = torch.from_numpy(study.network_inputs(inputs, ALL_STEPS))
    with torch.no_grad():
        outputs = net(x).double().numpy()
    apart = outputs.reshape(len(inputs), STEPS, -1) - study.fields(inputs)
    return np.asarray(np.sqrt((apart**2).mean((1, 2))))


def known_result(planned: Planned) -> dict[str, Any] | None:
    """Return the errors and times of a study, or ``None`` if it has not run."""
    for line in RESULTS.read_text().splitlines() if RESULTS.exists() else ():
        known: dict[str, Any] = json.loads(line)
        if planned.key.items() <= known.items():
            return known
    return None


def run(planned: Planned) -> None:
    """Run a study, and append its errors and times to ``RESULTS``."""
    began = time.process_time()
    running = Running(planned)
    running.train()
    seconds = time.process_time() - began
    errors = errors_of(planned.study, running.net)
    measured = {
        "99th percentile": float(np.quantile(errors, 0.99)),
        "mean": float(errors.mean()),
        "median": float(np.median(errors)),
        "seconds": seconds,
        "seconds of choices": running.seconds_of_choices,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(planned.key | measured) + "\n")


def planned_rows(name: str, study: Study, methods: Sequence[str], seed: int) -> dict[str, Planned]:
    """Return the studies of a seed by the label of their row in the table."""
    plans = {UNIFORM: Planned(name, study, UNIFORM, 1, seed)}
    for times in TIMES:
        plans[f"{UNIFORM} x {times:g} (scale)"] = Planned(name, study, UNIFORM, times, seed)
    for method in methods:
        plans[method] = Planned(name, study, method, 1, seed)
    return plans


def rows_of(name: str, study: Study, methods: Sequence[str], seeds: Sequence[int]) -> Rows:
    """Return the results of a study by seed, by the label of their row: of what has run."""
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    for seed in seeds:
        for label, planned in planned_rows(name, study, methods, seed).items():
            row = rows.setdefault(label, {})
            known = known_result(planned)
            if known is not None:
                row[seed] = known
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--study", nargs="+", choices=[*STUDIES, *HELD_OUT], default=[*STUDIES])
    parser.add_argument("--sampler", nargs="+", choices=[*METHODS], default=[*METHODS])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--held-out", action="store_true", help="also the two held-out studies")
    parser.add_argument("--quick", action="store_true", help="a few batches of one seed")
    parser.add_argument("--known", action="store_true", help="show what has run, and run nothing")
    parser.add_argument("--picture", type=Path, help="file for a picture of the ratios")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = [*options.study, *(HELD_OUT if options.held_out else ())]
    studies = {name: (STUDIES | HELD_OUT)[name] for name in names}
    seeds = range(options.seeds)
    if options.quick:
        seeds = range(1)
        studies = {
            name: replace(study, simulations=12, batches=40) for name, study in studies.items()
        }
    plans = [
        planned
        for seed in seeds  # outermost: a run that is stopped leaves whole seeds of all studies
        for name, study in studies.items()
        for planned in planned_rows(name, study, options.sampler, seed).values()
    ]
    for planned in () if options.known else plans:
        if known_result(planned) is None:
            run(planned)
    tables = {name: rows_of(name, study, options.sampler, seeds) for name, study in studies.items()}
    for name, rows in tables.items():
        study = studies[name]
        sizes = f"{study.simulations} simulations, {study.batches} batches"
        print_rows(f"{name}: {study.title}, {sizes}", rows)
    if options.picture:
        draw(options.picture, tables)


if __name__ == "__main__":
    main()
