"""Histories that were not trained: any that a trainer could have, and ones with known times."""

import math
from itertools import chain

from hypothesis import strategies as st

SECONDS = st.floats(0, 10).map(lambda value: round(value, 3))
NUMBERS = st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf])


@st.composite
def fits(draw, started, merge=None, clocks=SECONDS):
    """The records of one fit, with a metric that is a number and one that is a list, and workers
    that idle.
    """
    workers = draw(st.integers(1, 4))
    merge = merge or draw(st.sampled_from(["synchronous", "commutative", "parameter_server"]))
    validated = draw(st.booleans())
    records = []
    now = float(started)
    for _ in range(draw(st.integers(1, 5))):
        active = draw(st.lists(st.integers(0, workers - 1), min_size=1, unique=True))
        own = [entry(draw, worker, now + draw(clocks)) for worker in sorted(active)]
        now += draw(clocks)
        records.append(record(draw, started, now, merge, own, validated))
    return records


def entry(draw, worker, started):
    measured = {"loss": draw(NUMBERS), "recall": [draw(NUMBERS), draw(NUMBERS)]}
    return {
        "worker": worker,
        "samples": 10,
        "seconds": draw(SECONDS),
        **measured,
        "started": started,
    }


def record(draw, fit_started, ended, merge, workers, validated):
    measured = {"loss": draw(NUMBERS), "recall": [draw(NUMBERS), draw(NUMBERS)]}
    return {
        "epoch": 1,
        **measured,
        "samples": 10 * len(workers),
        "seconds": 0.5,
        "samples_per_second": 20.0 * len(workers),
        "fit_started": fit_started,
        "ended": ended,
        "merge": merge,
        "workers": workers,
        **({"val_loss": draw(NUMBERS)} if validated else {}),
    }


def numbered(records):
    """Count the rounds of several fits on, as a trainer does."""
    return [{"round": number, **record} for number, record in enumerate(records)]


def histories(**options):
    """Some fits after each other, or none."""
    starts = st.lists(st.integers(0, 10**6), max_size=3, unique=True)
    return starts.flatmap(
        lambda each: st.tuples(*(fits(started, **options) for started in each)).map(
            lambda parts: numbered(chain.from_iterable(parts))
        )
    )


def online_record(number=0, loss=0.5, **more):
    """A record as ``fit_online`` makes it."""
    own = [{"worker": 0, "samples": 30, "batches": 3, "received": 40, "buffer": 9, "loss": loss}]
    own += [{"worker": 1, "samples": 0, "batches": 0, "received": 0, "buffer": 0}]
    return {
        "round": number,
        "loss": loss,
        "samples": 30,
        "batches": 3,
        "seconds": 0.5,
        "samples_per_second": 60.0,
        "batches_per_second": 6.0,
        "fit_started": 1.0,
        "ended": 2.0 + number,
        "received": 40,
        "buffer": 9,
        "unseen": 0.25,
        "repetitions_mean": 1.5,
        "waited": 0.25,
        "simulations": {"running": 1, "done": 2, "failed": 0},
        "workers": own,
        **more,
    }


def steady_run(rounds, workers, merge="synchronous"):
    """A run whose workers take turns in being a little slower than the others."""
    records = []
    now = 1000.0
    for number in range(rounds):
        own = [
            {
                "worker": worker,
                "samples": 100,
                "seconds": 0.5 + 0.1 * ((worker + number) % 3),
                "loss": 1 / (number + 1) + worker / 1000,
                "started": now + 0.01 * worker,
            }
            for worker in range(workers)
        ]
        now = max(each["started"] + each["seconds"] for each in own) + 0.05
        records.append(
            {
                "epoch": 1 + number // 10,
                "loss": 1 / (number + 1),
                "val_loss": 1.1 / (number + 1),
                "samples": 100 * workers,
                "seconds": 0.8,
                "samples_per_second": 125.0 * workers,
                "fit_started": 999.0,
                "ended": now,
                "merge": merge,
                "workers": own,
            }
        )
    return numbered(records)
