"""How far apart results may lie that differ in rounding only, on any machine: from the type and the number of sums.

Vector units, libraries and numbers of threads add up in other orders. A bound holds for all of them, and stays
below what a mistake makes: a missing sample or a wrong weight changes a mean of 60 samples in the second digit.
"""

import numpy as np
import torch

from compss_train.model.weighted_mean import PartialSum, mean

WIDTHS = 6 + 16 + 3
"""Products that one output of the networks of ``models`` sums, over all layers."""


def sum_error(dtype, terms, magnitude=1.0):
    """Return a bound of the difference between two sums of the same products, each in an order of its own.

    Each product and each addition rounds by half a unit in the last place, and no partial sum is above
    ``magnitude``, the sum of the terms' magnitudes: each sum is off by at most ``terms * eps / 2 * magnitude``.
    """
    return float(terms * np.finfo(dtype).eps * magnitude)


def loss_error(dtype, samples):
    """Return a bound for mean losses of networks of ``models``.

    Their products add up to at most 10: inputs are below 7, and weights begin below 0.41.
    """
    return sum_error(dtype, samples + WIDTHS, 10.0)


def sgd_error(dtype, steps, lr, *, samples, momentum=0.0, weight=1.0):
    """Return a bound for parameters of networks of ``models`` after so many steps of so many samples.

    Each step rounds a parameter, which is at most ``weight``, and adds ``lr`` times a gradient; momentum adds it
    ``1 / (1 - momentum)`` times. A gradient is as exact as the loss. Errors of earlier steps do not grow: the
    learning rates are below 2 / curvature.
    """
    return steps * (sum_error(dtype, 1, weight) + lr / (1 - momentum) * loss_error(dtype, samples))


def adam_error(dtype, steps, lr, *, samples, smallest=1e-4):
    """Return a bound for parameters after so many steps of Adam or one like it.

    Such a step is ``lr * m / sqrt(v)``, as large for the smallest gradient that is not zero as for any other:
    errors relative to that one count, in ``m`` and in ``v``. That is useful in double precision only.
    """
    return steps * 2 * lr * loss_error(dtype, samples) / smallest


def largest(*versions):
    """Return the largest magnitude in some versions of the parameters."""
    return max(float(np.abs(array).max()) for version in versions for array in version.values())


def weighted(versions, counts):
    """Return the versions as those of workers 0, 1, ..., with their numbers of samples."""
    pairs = zip(versions, counts, strict=True)
    return [PartialSum.of_worker(version, count, worker) for worker, (version, count) in enumerate(pairs)]


def average(versions, counts, base=None):
    """Return the mean of the versions, as a merge makes it."""
    return dict(mean(weighted(versions, counts), base or {}))


def chance_of(counts):
    """Return how likely counts spread as much or more if all are equally likely: Pearson's chi-squared test.

    As ``scipy.stats.chisquare``, which takes two seconds to import.
    """
    counts = np.asarray(counts, float)
    expected = counts.mean()
    statistic = torch.tensor(np.square(counts - expected).sum() / expected)
    return torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2, dtype=statistic.dtype), statistic / 2).item()
