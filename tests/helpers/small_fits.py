"""Small fits, with and without checkpoints, and whether two of them ended alike."""

import time
from pathlib import Path
from typing import Any

from torch import nn

from compss_train import DistributedTrainer, Merge
from compss_train.training.checkpoints import list_checkpoints, read_checkpoint
from tests.helpers.models import ADAM, assert_same_bits, awkward_net, blocked, classification, mlp
from tests.training.checkpoints.trees import assert_same

PLAIN_SGD = {"optimizer": "sgd", "lr": 0.1}
STILL = {"shuffle": None, "shuffle_block_data": False}
X, Y = classification(samples=57)
TIMES = {"seconds", "samples_per_second", "started", "ended", "fit_started", "files"}


def trainer_of(
    engine="serial",
    workers=3,
    seed=0,
    net=awkward_net,
    optimizer=ADAM,
    loss="cross_entropy",
    metric="accuracy",
    clock=time.monotonic,
    threads=1,
    **options,
):
    trainer = DistributedTrainer(workers, engine=engine, seed=seed, threads=threads)
    trainer.clock = clock
    trainer.build(net if isinstance(net, nn.Module) else net(), optimizer, loss, metric, **options)
    return trainer


def fit(trainer, *callbacks, data=None, blocks=7, **options):
    data = blocked(X, Y, blocks) if data is None else data
    given = {"num_epochs": 3, "progress": False, **options}
    if "num_batches_per_worker" not in given:
        given.setdefault("batch_size", 6)
    return trainer.fit(*data, callbacks=callbacks, **given)


def numbers_of(value: Any) -> Any:
    """Return a history without times."""
    if isinstance(value, dict):
        return {name: numbers_of(item) for name, item in value.items() if name not in TIMES}
    return [numbers_of(item) for item in value] if isinstance(value, list) else value


def assert_alike(ours: DistributedTrainer, theirs: DistributedTrainer) -> None:
    """Both trainers have the same bits, and know the same of how they came about."""
    assert_same_bits(ours.get_parameters(), theirs.get_parameters())
    assert_same(numbers_of(list(ours.history)), numbers_of(list(theirs.history)))
    one = ours.snapshot()
    other = theirs.snapshot()
    assert_same(one.to_dict()["workers"], other.to_dict()["workers"])
    assert_same(one.to_dict()["merge"], other.to_dict()["merge"])
    assert (one.epoch, one.setting) == (other.epoch, other.setting)


def contents(folder: Path) -> dict[int, Any]:
    """Return all that is in the checkpoints of a folder, without times."""
    found = {number: read_checkpoint(path) for number, path in list_checkpoints(folder).items()}
    return {
        number: {
            **there,
            "history": numbers_of(there["history"]),
            "callbacks": list(there["callbacks"]),
        }
        for number, there in found.items()
    }


def fitted(engine, workers, x, y, net=None, optimizer=PLAIN_SGD, seed=0, **options):
    trainer = DistributedTrainer(workers, engine=engine, seed=seed, threads=1)
    trainer.build(net or mlp(), optimizer, "cross_entropy")
    return trainer.fit(x, y, **options)


class RefusingTransform:
    """A transform that lets nothing be trained."""

    def __call__(self, x):
        raise AssertionError("this was trained on")


def combined(*options, **more):
    """Return several dicts of options as one; their merges are combined, of which later ones count
    more.
    """
    result: dict[str, Any] = {}
    for each in (*options, more):
        before = result.get("merge")
        result |= each
        if before is not None and "merge" in each:
            result["merge"] = Merge.of(each["merge"]).with_defaults(Merge.of(before))
    return result
