"""Model: parameters, losses, metrics, optimizers and learning-rate schedules. Knows no engine and no data."""
