"""Training: the workers' tasks, merging, rounds and checkpoints. Independent of the engine."""
