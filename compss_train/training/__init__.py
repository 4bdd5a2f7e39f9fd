"""Training: the workers' tasks, merging, rounds and checkpoints. Independent of the engine."""

from compss_train.training.merge_intervals import PostLocal, Quadratic
from compss_train.training.profile import Profile

__all__ = ["PostLocal", "Profile", "Quadratic"]
