"""How large are the worst errors if inputs are chosen while the network learns?

The program is ``apps/active_surrogate.py``. The network, the bounds and the budgets of the app are
fixed, and methods were chosen on seeds other than these.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import _common as common
import numpy as np

from compss_train import BufferSpec, DistributedTrainer, InputSampler, Merge, Simulations

sys.path.append(str(Path(__file__).resolve().parents[1] / "apps"))
import active_surrogate as app  # type: ignore[import-not-found]

FACTORS = (2.0, 3.0)
"""Times as many simulations, of uniform inputs and with as many batches in all."""
FEW = 20
"""Simulations where only the rate counts."""
WORST = "99th percentile"
NUMBERS = ("median", "mean", WORST, "seconds", "mean square")
"""What is compared: statistics of the errors of simulations, and the time of a study."""
STUDIES = Path("runs/active-inputs.jsonl")
"""Studies that have run; a later call of this program goes on."""
TITLES = {"heat": "Heat equation, hot spot", "ks": "Kuramoto-Sivashinsky"}


def summary(name: str, method: str, times: float, seed: int) -> dict[str, float]:
    """Return the errors and the time of a study, which runs unless ``STUDIES`` has it."""
    key = {"problem": name, "method": method, "times": times, "seed": seed}
    for line in STUDIES.read_text().splitlines() if STUDIES.exists() else ():
        known: dict[str, float] = json.loads(line)
        if key.items() <= known.items():
            return known
    simulations = round(times * app.PROBLEMS[name].simulations)
    errors, seconds, history = app.study(name, method, seed, simulations=simulations)
    result = {
        "median": float(np.median(errors)),
        "mean": float(errors.mean()),
        WORST: float(np.quantile(errors, 0.99)),
        "seconds": float(seconds),
        "mean square": float((errors**2).mean()),
        "batches": sum(record["batches"] for record in history),
    }
    with STUDIES.open("a") as file:
        file.write(json.dumps(key | result) + "\n")
    return result


def ratio(ours: list[dict[str, float]], theirs: list[dict[str, float]], key: str) -> float:
    """Return the geometric mean over the seeds of the ratio of a number."""
    logarithms = [np.log(study[key] / base[key]) for study, base in zip(ours, theirs, strict=True)]
    return float(np.exp(np.mean(logarithms)))


def report_errors(name: str, repetitions: int) -> None:
    """Compare the methods, also by how many uniform inputs have the same worst errors."""
    kinds = [(method, 1.0) for method in app.METHODS]
    kinds += [("uniform", factor) for factor in FACTORS]
    results = [
        [summary(name, method, factor, seed) for seed in range(repetitions)]
        for method, factor in kinds
    ]
    uniform = results[0]
    worst_ratios = [ratio(studies, uniform, WORST) for studies in results[len(app.METHODS) :]]
    print(
        f"{name}: median over {repetitions} seeds; ratios to uniform, geometric mean over the seeds"
    )
    for (method, factor), studies in zip(kinds, results, strict=True):
        to_uniform = {key: ratio(studies, uniform, key) for key in NUMBERS}
        known_ratios = [-1.0, *(-worst for worst in worst_ratios)]
        needed = np.interp(-to_uniform[WORST], known_ratios, [1.0, *FACTORS])
        medians = {key: np.median([study[key] for study in studies]) for key in NUMBERS}
        values = ", ".join(f"{key} {value:.4f}" for key, value in medians.items())
        ratios = ", ".join(f"{key} {value:.2f}" for key, value in to_uniform.items())
        line = f"{method} x {factor:g}: {values}; to uniform {ratios}; simulations {needed:.1f}"
        print(line, flush=True)


def draw_errors(path: Path, repetitions: int) -> None:
    """Draw the median and the 99th percentile of each method, and the seeds as points."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(app.PROBLEMS), figsize=(9, 3.2), layout="constrained")
    for name, axis in zip(app.PROBLEMS, axes, strict=True):
        for place, method in enumerate(app.METHODS):
            studies = [summary(name, method, 1.0, seed) for seed in range(repetitions)]
            for key, color in (("median", "C0"), (WORST, "C3")):
                values = [study[key] for study in studies]
                axis.plot([place] * len(values), values, ".", color=color, alpha=0.4)
                axis.plot(
                    place,
                    np.median(values),
                    "_",
                    color=color,
                    markersize=24,
                    markeredgewidth=2,
                    label=f"{key} over simulations" if place == 0 else None,
                )
        axis.set(
            title=TITLES[name],
            yscale="log",
            xticks=range(len(app.METHODS)),
            xticklabels=app.METHODS,
        )
    axes[0].set_ylabel("error")
    axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=110)


class Numbers(InputSampler):
    """The numbers of some simulations, with the losses of samples or without."""

    def __init__(self, *, needs_losses: bool) -> None:
        self.needs_losses = needs_losses

    def next(self, table: Any) -> int | None:
        """Return the next number."""
        return len(table) if len(table) < FEW else None

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""


def lasting(problem: app.Problem, seconds: float, number: int) -> Iterator[Any]:
    """Yield the samples of a simulation.

    The last simulation ends after so many seconds, in which samples are repeated.
    """
    inputs = list(app.inputs("uniform", problem, FEW, 0))
    yield from app.samples(problem, inputs[number])
    if number == FEW - 1:
        time.sleep(seconds)


def rate(name: str, seconds: float, _: int, *, needs_losses: bool) -> float:
    """Return samples per second, from the first record of a fit to the last one."""
    problem = app.PROBLEMS[name]
    with DistributedTrainer(1, engine="local", seed=0, threads=1) as trainer:
        trainer.build(app.network(problem, 0), {"optimizer": "adam", "lr": 0.001}, "mse")
        trainer.fit_online(
            Simulations(partial(lasting, problem, seconds), Numbers(needs_losses=needs_losses)),
            buffer=BufferSpec("Reservoir", FEW * app.STEPS, threshold=FEW * app.STEPS),
            batch_size=app.BATCH,
            merge=Merge(every=50),
            record_every=0.2,
            progress=False,
        )
        first, *later = [record for record in trainer.history if record["samples"]]
        samples = sum(record["samples"] for record in later)
        return float(samples / (later[-1]["ended"] - first["ended"]))


def main() -> None:
    options = common.parsed(
        common.parser(__doc__, repetitions=5, parts=("heat", "ks", "picture", "rate"))
    )
    STUDIES.parent.mkdir(exist_ok=True)
    for part in options.parts:
        if part == "rate":
            seconds = 2 if options.quick else 8
            without = "losses by sample: False"
            rates = {
                without: partial(rate, "ks", seconds, needs_losses=False),
                "losses by sample: True": partial(rate, "ks", seconds, needs_losses=True),
            }
            measured = common.in_turn(rates, 2 * options.repetitions)
            common.print_rates("Samples per second, one worker", measured, without)
        elif part == "picture":
            draw_errors(STUDIES.with_name("active.png"), options.repetitions)
        else:
            report_errors(part, options.repetitions)


if __name__ == "__main__":
    main()
