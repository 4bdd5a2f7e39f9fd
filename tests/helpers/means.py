"""Means of what workers trained."""

from compss_train.model.weighted_mean import PartialSum, mean


def weighted(versions, counts):
    """Return the versions as those of workers 0, 1, ..., with their numbers of samples."""
    pairs = zip(versions, counts, strict=True)
    return [PartialSum.of_worker(version, count, worker) for worker, (version, count) in enumerate(pairs)]


def average(versions, counts, base=None):
    """Return the mean of the versions, as a merge makes it."""
    return dict(mean(weighted(versions, counts), base or {}))
