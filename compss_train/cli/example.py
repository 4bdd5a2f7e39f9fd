"""The function that makes the data of ``example.toml``, which ``compss-train fit --example`` prints."""

import numpy as np
from numpy.typing import NDArray


def spirals(
    samples: int = 3000, classes: int = 3, noise: float = 0.1, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return points on the arms of a spiral in the plane, (samples, 2), and the arm of each point, (samples,)."""
    random = np.random.default_rng(seed)
    arm = random.integers(classes, size=samples)
    along = random.uniform(size=samples)
    angle = 2 * np.pi * (arm / classes + along) + noise * random.normal(size=samples)
    points = along * np.stack([np.cos(angle), np.sin(angle)])
    return points.T.astype(np.float32), arm
