"""OGAS: a diffusion model learns which inputs are difficult, and draws such inputs."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.validation import check_count, check_non_negative
from compss_train.online.conditional_diffusion import ConditionalDiffusion
from compss_train.online.generations import GenerationSampler
from compss_train.online.input_samplers import Bounds
from compss_train.online.simulation_table import SimulationTable
from compss_train.online.small_networks import (
    DTYPE,
    minimized,
    mlp,
    new_weights,
    on_cpu_with_gradients,
)

_LEAST = 10
"""Simulations with a loss before the model learns."""
_MOST_TRIES = 10
"""Times that inputs outside the box are drawn; then they are moved to its border."""
_RATIO_STEPS = 100
"""Steps that the estimate of how often inputs were drawn is trained."""
_MOST_WEIGHT = 10.0
"""The largest weight of a simulation that stands for others that were not drawn."""


class OGASInputs(GenerationSampler):
    """Inputs as Melissa's OGAS breeder draws them: by a diffusion model, and uniform ones.

    The difficulty of a simulation is the root of its loss (0 if that is negative), scaled to lie
    between 0 and 1 among the simulations so far. At the end of each ``period`` of inputs a
    generation begins: a conditional diffusion model goes on to learn which inputs have which
    difficulty, and draws the inputs that this generation may need. Its targets are difficulties of
    earlier simulations, each with probability in proportion to it. What was drawn often weighs less
    in both, by a classifier that tells the inputs so far from uniform ones. An input of a
    generation is the model's with probability R, and uniform otherwise; R rises from ``start`` to
    ``end`` over ``breakpoint`` generations. The inputs before the first generation are uniform.

    Parameters
    ----------
    bounds:
        The smallest and the largest value of each parameter: pairs, or a dict of pairs by name,
        which makes dicts.
    number:
        Number of simulations of the study.
    period:
        Number of inputs between generations; by default 10.
    start:
        Probability that an input of the first generation is the model's; by default 0.
    end:
        That probability after ``breakpoint`` generations; by default 0.7.
    breakpoint:
        Number of generations until then; by default 4.
    guidance:
        Factor of what the difficulty changes in the model's predictions; by default 5.
    steps:
        Batches of 128 that the model is trained in each generation; by default 200.
    seed:
        Seed of the random numbers.

    Raises ``ValueError`` and ``TypeError`` for other values. Source: OGAS ("Learning Where to
    Simulate: Generative Active Sampling for Online PDE Surrogate Training", arXiv 2606.09949, 2026)
    and Melissa's ``OGASBreeder``, after their abstract, documentation and published settings. There
    a network of eight times the width learns in a thread beside the training, from moving averages
    of losses; here it learns when a generation begins, so that runs repeat.
    """

    def __init__(
        self,
        bounds: Bounds,
        number: int,
        *,
        period: int = 10,
        start: float = 0.0,
        end: float = 0.7,
        breakpoint: int = 4,
        guidance: float = 5.0,
        steps: int = 200,
        seed: int = 0,
    ) -> None:
        super().__init__(
            bounds,
            number,
            period=period,
            start=start,
            end=end,
            breakpoint=breakpoint,
            seed=seed,
        )
        self._guidance = check_non_negative("guidance", guidance)
        self._steps = check_count("steps", steps)
        with on_cpu_with_gradients():
            self._model = ConditionalDiffusion(self.parameters, self._generator())
        self._ready: NDArray[np.float64] = np.zeros((0, self.parameters))
        """Inputs that the model has drawn for this generation, in coordinates from 0 to 1."""

    def _generator(self) -> torch.Generator:
        """Return a generator of torch whose seed is the next random number."""
        return torch.Generator("cpu").manual_seed(int(self.random.integers(2**63)))

    def renew(self, table: SimulationTable) -> None:
        """Train the model on the simulations that have a loss, and let it draw."""
        self._ready = self._ready[:0]
        with on_cpu_with_gradients():
            self._learn(table)

    def _learn(self, table: SimulationTable) -> None:
        is_known = np.isfinite(table.loss)
        difficulty = np.sqrt(np.maximum(table.loss[is_known], 0))
        spread = np.ptp(difficulty) if len(difficulty) >= _LEAST else 0
        if not spread:
            return
        generator = self._generator()
        points = torch.from_numpy(2 * self.begun(table)[is_known] - 1).to(DTYPE)
        conditions = torch.from_numpy((difficulty - difficulty.min()) / spread).to(DTYPE)
        weights = _uniform_to_drawn(points, generator)
        self._model.train(points, conditions, weights, steps=self._steps, generator=generator)
        chances = weights * conditions
        targets = torch.multinomial(chances, self._period, replacement=True, generator=generator)
        self._ready = self._drawn(conditions[targets], generator)

    def _drawn(self, targets: torch.Tensor, generator: torch.Generator) -> NDArray[np.float64]:
        """Return an input of each difficulty, drawn again while it lies outside the box."""
        points = self._model.draw(targets, self._guidance, generator)
        for _ in range(_MOST_TRIES - 1):
            is_outside = (points.abs() > 1).any(1)
            if not is_outside.any():
                break
            points[is_outside] = self._model.draw(targets[is_outside], self._guidance, generator)
        return (points.clamp(-1, 1).double().numpy() + 1) / 2

    def can_breed(self) -> bool:
        """Return whether the model has drawn inputs for this generation."""
        return len(self._ready) > 0

    def breed(self) -> NDArray[np.float64]:
        """Return the next input that the model has drawn."""
        point: NDArray[np.float64] = self._ready[0]
        self._ready = self._ready[1:]
        return point

    def generation_state(self) -> dict[str, Any]:
        """Return the model's weights, and the inputs that it has drawn."""
        return {"model": self._model.state_dict(), "ready": self._ready}

    def load_generation_state(self, state: dict[str, Any]) -> None:
        """Go on from a state that ``generation_state`` returned."""
        self._model.load_state_dict(state["model"])
        self._ready = state["ready"]


def _uniform_to_drawn(points: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the density of uniform inputs over that of the drawn ones, at each of these.

    A classifier learns to tell them apart, as in Sugiyama, Suzuki and Kanamori, "Density Ratio
    Estimation in Machine Learning" (2012). The mean is 1.
    """
    size, parameters = points.shape
    weights = new_weights([parameters, 64, 64, 1], generator)
    labels = torch.cat([torch.ones(size, dtype=DTYPE), torch.zeros(size, dtype=DTYPE)])

    def batch_loss() -> torch.Tensor:
        uniform = 2 * torch.rand(size, parameters, generator=generator, dtype=DTYPE) - 1
        logits = mlp(weights, torch.cat([points, uniform])).flatten()
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)

    trained = minimized(weights, batch_loss, steps=_RATIO_STEPS, rate=0.001)
    ratios = (-mlp(trained, points).flatten()).exp().clamp(1 / _MOST_WEIGHT, _MOST_WEIGHT)
    return ratios / ratios.mean()
