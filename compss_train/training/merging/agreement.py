"""How much the workers agree: what the differences between their changes say about the gradient noise."""

import math
from collections.abc import Sequence

from compss_train.model.measured import Measured


def agreement(changes: Sequence[Measured], merged: Measured) -> dict[str, float]:
    """Return the record fields ``worker_agreement`` and ``noise_scale`` of a round that several workers trained.

    ``changes`` are the workers' measurements, with the squared norm of each one's ``change`` and the samples
    ``given``; ``merged`` has the squared norm of the mean change. ``worker_agreement`` is the norm of the mean over
    the root mean square of the norms: the cosine between the changes and their mean where all are equally long. It
    is 1 if all workers agree, and about 1 / √workers if their changes are noise only. ``noise_scale`` is the number
    of samples at which the noise of a mean gradient is as large as the gradient, estimated from the norms of the
    changes of one worker and of all (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1), as if a change were a
    gradient over the worker's samples; it is left out where the estimate is not positive. Workers without samples
    do not count, and of fewer than two workers there is nothing to compare.
    """
    trained = [(each.given, each.change) for each in changes if each.given]
    if len(trained) < 2:
        return {}
    total = sum(count for count, _ in trained)
    single = sum(count * change for count, change in trained) / total
    if not (single > 0 and math.isfinite(single)):
        return {}
    mean = merged.change
    return {"worker_agreement": math.sqrt(mean / single), **_noise_scale(single, mean, total / len(trained), total)}


def _noise_scale(single: float, mean: float, few: float, many: float) -> dict[str, float]:
    signal = (many * mean - few * single) / (many - few)
    noise = (single - mean) / (1 / few - 1 / many)
    return {"noise_scale": noise / signal} if signal > 0 and noise > 0 else {}
