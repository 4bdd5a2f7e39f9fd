"""Measures: the loss and the metrics, from batches in workers to values in the history.

A worker takes states of what it measures, and the coordinator computes values from the states of all workers, in
their order: the value over all samples, not a mean of the workers' values.
"""

from compss_train.model.metrics.measures import Measures, MetricSpec, resolve_metrics

__all__ = ["Measures", "MetricSpec", "resolve_metrics"]
