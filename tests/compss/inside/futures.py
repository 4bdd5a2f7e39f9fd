"""Trains on blocks that are futures of tasks, by all eight fits; writes the results to a file."""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer
from tests.compss.inside import block_tasks
from tests.compss.inside.fit import record_read_sizes
from tests.helpers.models import FITS


def futures():
    """Return x and y of 4 blocks of 50: two that tasks return, two that a task puts into a
    collection.
    """
    pairs = [block_tasks.make_blocks(start, start + 50) for start in (0, 50)]
    xs = [object(), object()]
    ys = [object(), object()]
    block_tasks.fill_blocks(xs, ys, 100, 50)
    grid = (
        [*([x] for x, _ in pairs), *([x] for x in xs)],
        [*([y] for _, y in pairs), *([y] for y in ys)],
    )
    return tuple(map(block_tasks.Tensor, grid))


def arrays():
    x, y = block_tasks.samples(0, 200)
    return BlockedTensor.from_array(x, (4, 1)), BlockedTensor.from_array(y, (4, 1))


def trained(fit, x, y, engine):
    trainer = DistributedTrainer(2, engine=engine, seed=0, threads=1)
    torch.manual_seed(0)
    trainer.build(nn.Linear(6, 2), {"optimizer": "sgd", "lr": 0.1}, "cross_entropy", "accuracy")
    return trainer, getattr(trainer, fit)(x, y, 5, 2)


def compared(fit, x, y):
    """Return the greatest difference from what the serial engine makes of arrays."""
    trainer, ours = trained(fit, x, y, "auto")
    _, theirs = trained(fit, *arrays(), "serial")
    assert_close(trainer.evaluate(x, y)["loss"], trainer.evaluate(*arrays())["loss"])
    assert_close(trainer.predict(x), trainer.predict(arrays()[0]))
    return max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours)


def assert_close(ours, theirs):
    if not np.allclose(ours, theirs, atol=1e-5):
        raise SystemExit(f"{ours} differs from {theirs}")


def main():
    x, y = futures()
    fetched = record_read_sizes()
    blocked = BlockedTensor.from_dislib(x)
    known = {"shape": blocked.shape, "sizes": blocked.sizes, "dtype": str(blocked.dtype)}
    before = list(fetched)
    differences = {fit: compared(fit, x, y) for fit in FITS}
    collected = blocked.collect()
    again = blocked.collect()
    same = bool((collected == block_tasks.samples(0, 200)[0]).all() and (again == collected).all())
    result = {
        "known": known,
        "differences": differences,
        "read by from_dislib": before,
        "collected": same,
    }
    Path(sys.argv[1]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
