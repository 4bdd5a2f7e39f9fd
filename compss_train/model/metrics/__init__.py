"""The loss and the metrics: from batches in workers to values in the history.

Workers accumulate a state for each metric, and the coordinator computes values from the states of all workers, in
their order: the value over all samples, not the mean of the workers' values.
"""

from compss_train.model.metrics.measures import Measures, MetricAccumulator, MetricSpec, resolve_metrics

__all__ = ["Measures", "MetricAccumulator", "MetricSpec", "resolve_metrics"]
