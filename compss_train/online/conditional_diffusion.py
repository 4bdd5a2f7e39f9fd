"""A small diffusion model that learns which inputs have which difficulty, and draws such inputs."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compss_train.online.small_networks import DTYPE, minimized, mlp, new_weights

_NOISE_STEPS = 100
"""Steps from an input to noise."""
_WIDTH = 128
"""Width of the three hidden layers."""
_BATCH = 128
_RATE = 0.001
"""The learning rate of Adam."""
_UNCONDITIONAL = 0.1
"""The share of training samples whose condition is hidden."""
_FREQUENCIES = 4
"""Frequencies in the features of a noise step."""


class ConditionalDiffusion:
    """A denoising diffusion model of points in [-1, 1]ⁿ, given a number from 0 to 1 for each.

    All random numbers come from the generators that its methods get, so that it is a function of
    them, of its weights and of the data. Source: Ho, Jain and Abbeel, "Denoising Diffusion
    Probabilistic Models" (NeurIPS 2020), with the cosine schedule of Nichol and Dhariwal (ICML
    2021) and the guidance of Ho and Salimans (2022).
    """

    def __init__(self, parameters: int, generator: torch.Generator) -> None:
        self._parameters = parameters
        features = parameters + 2 * _FREQUENCIES + 2
        self._weights = new_weights([features, _WIDTH, _WIDTH, _WIDTH, parameters], generator)
        times = torch.arange(_NOISE_STEPS + 1, dtype=DTYPE) / _NOISE_STEPS
        signal = torch.cos((times + 0.008) / 1.008 * torch.pi / 2) ** 2
        betas = (1 - signal[1:] / signal[:-1]).clamp(max=0.999)
        self._alphas = 1 - betas
        self._signal = torch.cumprod(self._alphas, 0)
        """The share of the variance that is the input's, after each step."""

    def train(
        self,
        points: Tensor,
        conditions: Tensor,
        weights: Tensor,
        *,
        steps: int,
        generator: torch.Generator,
    ) -> None:
        """Train on points, each with a condition and with its weight in the loss."""

        def batch_loss() -> Tensor:
            rows = torch.randint(len(points), (_BATCH,), generator=generator)
            times = torch.randint(_NOISE_STEPS, (_BATCH,), generator=generator)
            noise = self._normal(_BATCH, generator)
            chances = torch.rand(_BATCH, generator=generator, dtype=DTYPE)
            is_known = (chances >= _UNCONDITIONAL).to(DTYPE)
            signal = self._signal[times, None]
            noisy = signal.sqrt() * points[rows] + (1 - signal).sqrt() * noise
            predicted = self._noise(noisy, times, conditions[rows], is_known)
            return (weights[rows] * (predicted - noise).square().mean(1)).mean()

        self._weights = minimized(self._weights, batch_loss, steps=steps, rate=_RATE)

    @torch.no_grad()
    def draw(self, conditions: Tensor, guidance: float, generator: torch.Generator) -> Tensor:
        """Return a point for each condition, which may lie outside the box."""
        size = len(conditions)
        points = self._normal(size, generator)
        known = torch.ones(size, dtype=DTYPE)
        for step in reversed(range(_NOISE_STEPS)):
            times = torch.full((size,), step)
            conditional = self._noise(points, times, conditions, known)
            unconditional = self._noise(points, times, conditions, 0 * known)
            noise = unconditional + guidance * (conditional - unconditional)
            alpha = self._alphas[step]
            signal = self._signal[step]
            points = (points - (1 - alpha) / (1 - signal).sqrt() * noise) / alpha.sqrt()
            if step:
                points = points + (1 - alpha).sqrt() * self._normal(size, generator)
        return points

    def _normal(self, size: int, generator: torch.Generator) -> Tensor:
        """Return points of noise."""
        return torch.randn(size, self._parameters, generator=generator, dtype=DTYPE)

    def _noise(self, noisy: Tensor, times: Tensor, conditions: Tensor, known: Tensor) -> Tensor:
        """Predict the noise in points; a condition that is not ``known`` counts as none."""
        frequencies = 2.0 ** torch.arange(_FREQUENCIES, dtype=DTYPE)
        angles = times[:, None].to(DTYPE) / _NOISE_STEPS * torch.pi * frequencies
        hidden = torch.stack([conditions * known, known], 1)
        return mlp(self._weights, torch.cat([noisy, angles.sin(), angles.cos(), hidden], 1))

    def state_dict(self) -> list[NDArray[Any]]:
        """Return the weights."""
        return [weight.numpy().copy() for weight in self._weights]

    def load_state_dict(self, state: list[NDArray[Any]]) -> None:
        """Go on from weights that ``state_dict`` returned."""
        self._weights = [torch.from_numpy(np.array(weight)) for weight in state]
