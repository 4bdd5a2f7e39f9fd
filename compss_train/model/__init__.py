"""Model: parameters, losses, metrics, optimizers and learning-rate schedules.

It knows neither engines nor data.
"""
