"""Training: the workers' tasks, merging, rounds and checkpoints. Knows no engine in particular."""
