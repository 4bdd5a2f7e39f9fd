"""How far apart results may lie that differ in rounding only, on any machine: from the type and the
number of sums.

Two computations have the same bits only where the same kernels get the same shapes in the same
order. Batches of another size, other threads and other vector units add up in other orders. A bound
holds for all of them, and stays below what a mistake makes: a missing sample or a wrong weight
changes a mean of 60 samples in the second digit.
"""

import numpy as np
import torch
from torch import nn

from compss_train.worker.merging.trained import Trained
from compss_train.worker.merging.weighted_mean import mean

WIDTHS = 6 + 16 + 3
"""Products that one output of the networks of ``models`` sums, over all layers."""


def sum_error(dtype, terms, magnitude=1.0):
    """Return a bound of the difference between two sums of the same products, each in an order of
    its own.

    Each product and each addition rounds by at most ``u``, half a unit in the last place, relative
    to its result. A term goes through at most ``terms`` of them, so a sum is off by at most ``n * u
    / (1 - n * u)`` times ``magnitude``, the sum of the terms' magnitudes, in any order, with or
    without fused operations (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section
    3.1). Two sums lie on both sides of the exact one.
    """
    rounding = terms * float(np.finfo(dtype).eps) / 2
    return float(2 * rounding / (1 - rounding) * magnitude)


@torch.no_grad()
def output_error(net, x):
    """Return a bound for outputs of a network of linear layers, BatchNorm, ReLU, Dropout and
    Flatten in evaluation.

    An output is a sum over paths: products of an input, or of a bias, and the weights on its way.
    Layer after layer, a product takes part in as many roundings as the layer has inputs, and two
    more of bias and BatchNorm's shift. The magnitudes of all paths add up to the output of the same
    layers with the magnitudes of their weights and inputs; ReLU makes no error larger.
    """
    terms = 0
    magnitude = torch.as_tensor(x).abs()
    for layer in net:
        if isinstance(layer, nn.Linear):
            bias = None if layer.bias is None else layer.bias.abs()
            terms = terms + layer.in_features + 1
            magnitude = nn.functional.linear(magnitude, layer.weight.abs(), bias)
        elif isinstance(layer, nn.BatchNorm1d):
            scale = layer.weight.abs() / (layer.running_var + layer.eps).sqrt()
            # The scale is rounded five times, and there are a difference, a product and a sum.
            terms = terms + 8
            magnitude = (magnitude + layer.running_mean.abs()) * scale + layer.bias.abs()
        elif isinstance(layer, nn.Flatten):
            magnitude = layer(magnitude)
        elif not isinstance(layer, nn.ReLU | nn.Dropout):
            raise TypeError(f"no bound for {layer}")
    return sum_error(torch.finfo(magnitude.dtype).dtype, terms, magnitude.max().item())


def loss_error(dtype, samples):
    """Return a bound for mean losses of networks of ``models``.

    Their products add up to at most 10: inputs are below 7, and weights begin below 0.41.
    """
    return sum_error(dtype, samples + WIDTHS, 10.0)


def sgd_error(dtype, steps, lr, *, samples, momentum=0.0, weight=1.0):
    """Return a bound for parameters of networks of ``models`` after so many steps of so many
    samples.

    Each step rounds a parameter, which is at most ``weight``, and adds ``lr`` times a gradient;
    momentum adds it ``1 / (1 - momentum)`` times. A gradient is as exact as the loss. Errors of
    earlier steps do not grow: the learning rates are below 2 / curvature.
    """
    return steps * (sum_error(dtype, 1, weight) + lr / (1 - momentum) * loss_error(dtype, samples))


def adam_error(dtype, steps, lr, *, samples, smallest=1e-4):
    """Return a bound for parameters after so many steps of Adam or one like it.

    Such a step is ``lr * m / sqrt(v)``, as large for the smallest gradient that is not zero as for
    any other: errors relative to that one count, in ``m`` and in ``v``. That is useful in double
    precision only.
    """
    return steps * 2 * lr * loss_error(dtype, samples) / smallest


def largest(*versions):
    """Return the largest magnitude in some versions of the parameters."""
    return max(float(np.abs(array).max()) for version in versions for array in version.values())


def weighted(versions, counts):
    """Return the versions as those of workers 0, 1, ..., with their numbers of samples."""
    pairs = zip(versions, counts, strict=True)
    return [
        Trained(worker=worker, weight=count, parameters=version)
        for worker, (version, count) in enumerate(pairs)
    ]


def average(versions, counts, base=None):
    """Return the mean of the versions, as a merge makes it."""
    return merged(weighted(versions, counts), base)


def merged(items, base=None):
    """Return the mean of the parameters of some items."""
    return dict(mean(items, {"parameters": base or {}})["parameters"])


def chance_of(counts):
    """Return how likely counts spread as much or more if all are equally likely: Pearson's
    chi-squared test.

    As ``scipy.stats.chisquare``, which takes two seconds to import.
    """
    counts = np.asarray(counts, float)
    expected = counts.mean()
    statistic = torch.tensor(np.square(counts - expected).sum() / expected)
    return torch.special.gammaincc(
        torch.tensor((len(counts) - 1) / 2, dtype=statistic.dtype), statistic / 2
    ).item()
