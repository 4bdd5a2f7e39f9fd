"""What the tests of fits that read files share: files of several sizes, and small fits."""

import itertools

import numpy as np

from compss_train import DistributedTrainer, FileDataset, PartialShuffle
from tests.helpers.models import ADAM, awkward_net

SIZES = (13, 20, 7, 17)
BOUNDS = (0, *itertools.accumulate(SIZES))
POOLS = {"shuffle": PartialShuffle(11, pools=2)}


def rows(array):
    return [array[start:stop] for start, stop in itertools.pairwise(BOUNDS)]


def write_files(folder, samples):
    for number, (x, y) in enumerate(zip(*map(rows, samples), strict=True)):
        np.savez(folder / f"{number}.npz", x=x, y=y)


def fitted(engine, workers, data, net=awkward_net, **options):
    trainer = DistributedTrainer(workers, engine=engine, seed=0, threads=1)
    trainer.build(net(), ADAM, "cross_entropy", "accuracy")
    data = (data,) if isinstance(data, FileDataset) else data
    return trainer.fit(*data, **{"num_epochs": 2, "batch_size": 5, **options}), trainer.history
