"""The kinds that are more than the options of one fit."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from compss_train import (
    BlockedTensor,
    BufferSpec,
    DistributedClassifier,
    DistributedRegressor,
    Merge,
    Simulations,
)
from compss_train.callbacks import Callback, Checkpoint, EarlyStopping
from compss_train.integrations.dislib import (
    EncapsulatedFunctionsDistributedEddl,
    EncapsulatedFunctionsDistributedPytorch,
)
from tests.same_bits.fitting import (
    ADAM,
    Bits,
    Place,
    bits_of,
    blocks,
    fit,
    history_bits,
    small_fit,
    trainer_of,
)
from tests.same_bits.kinds import BATCHES, KINDS, NESTEROV, SGD, VALIDATED
from tests.same_bits.material import ONE_HOT, X, Y, awkward, mlp, simulate, softmax_net

NAMED_FITS = {
    "fit_synchronous_with_GPU": (),
    "fit_synchronous_shuffle_with_GPU": (),
    "fit_synchronous_every_n_epochs_with_GPU": (2,),
    "fit_synchronous_shuffle_every_n_epochs_with_GPU": (2,),
    "fit_asynchronous_with_GPU": (),
    "fit_asynchronous_shuffle_with_GPU": (),
    "fit_asynchronous_n_epochs_with_GPU": (2,),
    "fit_asynchronous_shuffle_n_epochs_with_GPU": (2,),
}
"""The eight fits, and their positional arguments after the number of epochs."""


def kind(name: str) -> Callable[[Callable[[Place], Bits]], Callable[[Place], Bits]]:
    def register(function: Callable[[Place], Bits]) -> Callable[[Place], Bits]:
        KINDS[name] = function
        return function

    return register


def prefixed(prefix: str, bits: Bits) -> Bits:
    return {f"{prefix} {name}": array for name, array in bits.items()}


def built(place: Place, workers: int = 3, **build) -> object:
    trainer = trainer_of(place, workers)
    trainer.build(awkward(), ADAM, "cross_entropy", "accuracy", **build)
    return trainer


@kind("a second fit")
def second_fit(place: Place) -> Bits:
    trainer = built(place, schedule=lambda epoch: 0.9**epoch)
    fit(trainer, X, Y)
    fit(trainer, blocks(X, 4), blocks(Y, 4), shuffle="total", outer_optimizer=NESTEROV, **BATCHES)
    return bits_of(trainer)


@kind("torchmetrics")
def torchmetrics(place: Place) -> Bits:
    from torchmetrics.classification import MulticlassAccuracy  # which takes seconds

    return small_fit(place, metric={"right": MulticlassAccuracy(3, average=None)}, **VALIDATED)


@kind("early stopping")
def early_stopping(place: Place) -> Bits:
    stopping = EarlyStopping("val_loss", patience=1, min_delta=0.05)
    return small_fit(place, callbacks=[stopping], num_epochs=9, **VALIDATED)


class InterruptedFitError(Exception):
    """Ends a fit."""


class Ends(Callback):
    """Ends a fit, or its process, after a round."""

    def __init__(self, after: int, *, kill: bool) -> None:
        self.after = after
        self.kill = kill

    def on_round_end(self, trainer, record):
        if record["round"] == self.after and self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if record["round"] == self.after:
            raise InterruptedFitError


RESUMED = {
    "num_epochs": 3,
    "outer_optimizer": NESTEROV,
    "dtype": "int8",
    "averaging": "ema",
    **BATCHES,
}
IN_BUFFERS = {"num_epochs": 3, "buffer": BufferSpec("FIRO", 24, threshold=9), **BATCHES}


def interrupted_fit(place: Place, options: dict, *, kill: bool) -> None:
    fit(
        built(place),
        blocks(X),
        blocks(Y),
        callbacks=[Checkpoint(place.folder), Ends(7, kill=kill)],
        **options,
    )


def resumed_fit(place: Place, options: dict) -> Bits:
    trainer = built(place)
    fit(trainer, blocks(X), blocks(Y), resume=place.folder, **options)
    return bits_of(trainer)


def on_serial(folder: Path) -> Place:
    return Place("serial", folder)


def interrupted(place: Place, options: dict) -> Bits:
    try:
        interrupted_fit(on_serial(place.folder), options, kill=False)
    except InterruptedFitError:
        return resumed_fit(place, options)
    raise RuntimeError("the fit was not interrupted")


kind("interrupted and resumed")(partial(interrupted, options=RESUMED))
kind("interrupted with samples in buffers and resumed")(partial(interrupted, options=IN_BUFFERS))


@kind("killed and resumed")
def killed(place: Place) -> Bits:
    program = (
        "import sys; from tests.same_bits import other_kinds; other_kinds.be_killed(sys.argv[1])"
    )
    code = subprocess.run(
        [sys.executable, "-c", program, str(place.folder)], check=False
    ).returncode
    if code != -signal.SIGKILL:
        raise RuntimeError(f"the fit ended with {code}, before it was killed")
    return resumed_fit(place, RESUMED)


def be_killed(folder: str) -> None:
    """Run the fit that is killed."""
    interrupted_fit(on_serial(Path(folder)), RESUMED, kill=True)


@kind("the eight fits")
def named_fits(place: Place) -> Bits:
    found: Bits = {}
    for name, more in NAMED_FITS.items():
        trainer = built(place, place.workers(3, by_arrival="asynchronous" in name))
        getattr(trainer, name)(blocks(X), blocks(Y), 2, 2, *more, progress=False)
        found |= prefixed(name, bits_of(trainer))
    return found


KEPT = Merge(optimizer_state="keep")
"""dislib's classes make a new optimizer for each block, where nothing is said."""


@kind("dislib's class for torch")
def dislib_torch(place: Place) -> Bits:
    found: Bits = {}
    for name, more in list(NAMED_FITS.items())[::3]:
        workers = place.workers(2, by_arrival="asynchronous" in name)
        ours = EncapsulatedFunctionsDistributedPytorch(
            workers, engine=place.engine, seed=7, threads=1
        )
        ours.build(mlp(), torch.optim.SGD, nn.CrossEntropyLoss, {"lr": 0.05, "momentum": 0.9})
        net = getattr(ours, name)(
            blocks(X, 4), blocks(Y, 4), 2, 2, *more, merge=KEPT, progress=False
        )
        found |= prefixed(name, {each: tensor.numpy() for each, tensor in net.state_dict().items()})
    return found


@kind("dislib's class for EDDL")
def dislib_eddl(place: Place) -> Bits:
    ours = EncapsulatedFunctionsDistributedEddl(2, engine=place.engine, seed=7, threads=1)
    optimizer = {"optimizer": "adam", "lr": 0.01}
    ours.build(softmax_net(), optimizer, "softmax_cross_entropy", "categorical_accuracy")
    layers = ours.fit_synchronous_shuffle_with_GPU(
        BlockedTensor.from_array(X * 255, (4, 1)),
        blocks(ONE_HOT, 4),
        2,
        2,
        merge=KEPT,
        progress=False,
    )
    arrays = [array for layer in layers for array in layer]
    return {f"array {number}": array for number, array in enumerate(arrays)} | history_bits(
        ours.trainer.history
    )


@kind("estimators of scikit-learn")
def estimators(place: Place) -> Bits:
    options = {
        "engine": place.engine,
        "threads": 1,
        "random_state": 3,
        "num_epochs": 3,
        "hidden": (8,),
    }
    labels = np.array(["a", "b", "c"])[Y]
    classifier = DistributedClassifier(
        **options, class_weight="balanced", validation_fraction=0.2
    ).fit(X, labels)
    regressor = DistributedRegressor(**options, optimizer=SGD).fit(X, X[:, 0])
    return {"classes": classifier.predict_proba(X), "values": regressor.predict(X)}


@kind("buffers alone")
def buffers_alone(place: Place) -> Bits:
    """Puts and gets in one thread."""
    found: Bits = {}
    for name in ("FIFO", "FIRO", "Reservoir", "BatchReservoir"):
        buffer = BufferSpec(name, 12).make(4, seed=3)
        drawn = []
        for start in range(0, 48, 4):
            for number in range(start, start + 4):
                with suppress(queue.Full):  # a reservoir whose samples have not all been returned
                    buffer.put(torch.tensor(number), block=False)
            if start >= 8:
                drawn.append(buffer.get_batch(4))
        found[name] = torch.stack(drawn).numpy()
    return found


@kind("online, one worker")
def online(place: Place) -> Bits:
    """Samples come in the order of one simulation after the other."""
    trainer = trainer_of(Place("local", place.folder) if place.engine == "serial" else place, 1)
    trainer.build(awkward(), ADAM, "cross_entropy", "accuracy")
    with trainer:
        trainer.fit_online(
            Simulations(simulate, [range(30), range(30, 57)]),
            buffer=BufferSpec("FIFO", 16),
            batch_size=5,
            merge=Merge(every=2, outer_optimizer=NESTEROV),
            progress=False,
        )
        return {f"parameter {name}": array for name, array in trainer.get_parameters().items()}
