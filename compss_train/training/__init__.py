"""Training: the workers' tasks, merging, rounds and checkpoints. Independent of the engine."""

from compss_train.training.merge import PostLocal, Quadratic

__all__ = ["PostLocal", "Quadratic"]
