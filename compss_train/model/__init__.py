"""Model: parameters, losses, metrics, optimizers and learning-rate schedules; it knows neither
engines nor data.
"""
