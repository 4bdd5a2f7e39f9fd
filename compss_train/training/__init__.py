"""Training: the workers' tasks, merging, rounds and checkpoints. Independent of the engine."""

from compss_train.training.presets import PostLocal

__all__ = ["PostLocal"]
