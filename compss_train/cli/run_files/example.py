"""The data of the example that ``compss-train fit --example`` prints."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def spirals(
    samples: int = 3000, classes: int = 3, noise: float = 0.1, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return points of the plane on arms of a spiral, (samples, 2), and which arm each is on, (samples,)."""
    random = np.random.default_rng(seed)
    arm = random.integers(classes, size=samples)
    along = random.uniform(size=samples)
    angle = 2 * np.pi * (arm / classes + along) + noise * random.normal(size=samples)
    points = along * np.stack([np.cos(angle), np.sin(angle)])
    return points.T.astype(np.float32), arm
