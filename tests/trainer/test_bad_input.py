"""Wrong input is a clear error before any task starts: it names what was given and what is accepted."""

import threading

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer, Gradients, Merge, NotBuiltError, PartialShuffle
from compss_train.callbacks import Checkpoint, EarlyStopping, ProgressBar
from tests.helpers.models import SGD, blocked, classification, mlp
from tests.helpers.serial_engines import NoTasks


@pytest.fixture
def trainer():
    trainer = DistributedTrainer(2, engine=NoTasks(), seed=0)
    trainer.build(mlp(), SGD, "cross_entropy", "accuracy")
    return trainer


X, Y = classification()
GOOD = {"num_epochs": 1, "batch_size": 5}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_epochs": 0, "batch_size": 5}, "num_epochs=0: give an integer of at least 1"),
        ({"num_epochs": 1.5, "batch_size": 5}, "num_epochs=1.5: give an integer"),
        ({"num_epochs": 1, "batch_size": 0}, "batch_size=0: give an integer of at least 1"),
        ({"num_epochs": 1, "num_batches_per_worker": -1}, "num_batches_per_worker=-1: give an integer"),
        ({"num_epochs": 1}, "give exactly one of them"),
        ({"num_epochs": 1, "batch_size": 2, "num_batches_per_worker": 2}, "give exactly one of them"),
        ({"num_epochs": 1, "num_batches_per_worker": 16}, "block 0 has only 15 rows; use 15 batches at most"),
        ({**GOOD, "merge": "async"}, "merge='async': choose one of 'synchronous', 'commutative'"),
        ({**GOOD, "shuffle": "all"}, "shuffle='all': choose one of 'blocks', 'total', None"),
        ({**GOOD, "shuffle": True}, "shuffle=True: choose one of 'blocks', 'total', None"),
        ({**GOOD, "shuffle": "partial"}, r"shuffle='partial': give PartialShuffle\(\)"),
        ({**GOOD, "merge": Merge(rule="halving")}, r"rule='halving' belongs to Merge\('commutative'\)"),
        (
            {**GOOD, "merge": Merge(optimizer_state="reset_blocks"), "shuffle": PartialShuffle()},
            "optimizer_state='reset_blocks' makes a new optimizer for each block, and PartialShuffle mixes",
        ),
    ],
)
@pytest.mark.parametrize("method", ["fit", "check_fit"])
def test_options_of_a_fit(trainer, method, options, message):
    with pytest.raises(ValueError, match=message):
        getattr(trainer, method)(*blocked(X, Y, 4), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"validation_data": value}, r"validation_data=\w+: give a pair \(x, y\)")
            for value in (X, X[:2], 0.2, "x", (X, Y, Y))
        ),
        *(({"callbacks": value}, "callbacks=.*: give a list") for value in (None, ProgressBar(), "progress")),
    ],
)
def test_options_of_another_type(trainer, options, message):
    with pytest.raises(TypeError, match=message):
        trainer.fit(X, Y, **GOOD, **options)


CALLS = [
    (
        lambda trainer: trainer.fit_asynchronous_n_epochs_with_GPU(X, Y, 2, 1, n_epocs_sync=-1),
        ValueError,
        "n_epocs_sync=-1: give an integer of at least 0",
    ),
    (
        lambda trainer: trainer.fit_synchronous_with_GPU(X, Y, None, 1),
        ValueError,
        "num_batches_per_worker=None and batch_size=None: give exactly one of them",
    ),
    (
        lambda trainer: trainer.fit_synchronous_with_GPU(X, Y, 2, 1, shuffle_blocks="yes"),
        ValueError,
        "shuffle_blocks='yes': choose one of True, False",
    ),
    (lambda trainer: trainer.fit(np.zeros((0, 6)), **GOOD), ValueError, "no samples"),
    (lambda trainer: trainer.fit("data.npy", **GOOD), ValueError, "this value is a scalar: 'data"),
    (lambda trainer: trainer.fit(["a", "b"], **GOOD), TypeError, "torch cannot hold arrays of dtype <U1"),
]


@pytest.mark.parametrize(("call", "error", "message"), CALLS)
def test_arguments_of_calls(trainer, call, error, message):
    with pytest.raises(error, match=message):
        call(trainer)


def trainer_with(**options):
    return DistributedTrainer(**{"num_workers": 2, "engine": NoTasks(), **options})


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        *(
            (trainer_with, {"num_workers": bad}, f"num_workers={bad!r}: give an integer of at least 1")
            for bad in (0, -3, 1.0, "2", True)
        ),
        *(
            (trainer_with, {"num_workers": many}, f"num_workers={many}: give at most 100000 workers")
            for many in (10**9, 100_001)
        ),
        (trainer_with, {"seed": -1}, "seed=-1: give an integer of at least"),
        (trainer_with, {"seed": 0.5}, "seed=0.5: give an integer of at least"),
        (trainer_with, {"seed": 2**63}, r"give an integer below 2\*\*63"),
        (trainer_with, {"threads": 0}, "threads=0: give an integer of at least"),
        (trainer_with, {"worker_timeout": 0}, "worker_timeout=0: give a number of seconds above 0"),
        (trainer_with, {"engine": "ray"}, "engine='ray' is not an engine; choose one of auto, serial, local"),
        (Gradients, {"clip_norm": 0}, "clip_norm=0: give a number above 0, or None"),
        (Gradients, {"clip_norm": float("inf")}, "clip_norm=inf: give a number above 0"),
        (Gradients, {"clip_value": "1"}, "clip_value='1': give a number above 0"),
        (Gradients, {"clip_value": True}, "clip_value=True: give a number above 0"),
        (Gradients, {"clip_norm": 1.0, "clip_value": 0.5}, "clip_norm=1.0 and clip_value=0.5: give at most one"),
        (Gradients, {"accumulate": 0}, "accumulate=0: give an integer of at least 1"),
        (Gradients, {"accumulate": 2.0}, "accumulate=2.0: give an integer of at least 1"),
        (Gradients, {"on_nan": "stop"}, "on_nan='stop': choose one of 'raise', 'skip', 'ignore'"),
        (PartialShuffle, {"pool_size": 0}, "pool_size=0"),
        (PartialShuffle, {"pools": 3}, "pools=3: choose 1 or 2"),
    ],
)
def test_values_that_make_no_sense(make, given, message):
    with pytest.raises(ValueError, match=message):
        make(**given)


def test_the_largest_values_are_taken():
    trainer = trainer_with(num_workers=100_000, seed=2**63 - 1)
    assert (trainer.num_workers, trainer.seed) == (100_000, 2**63 - 1)


def test_the_environment_names_the_engine(monkeypatch):
    monkeypatch.setenv("COMPSS_TRAIN_ENGINE", "dask")
    with pytest.raises(ValueError, match="COMPSS_TRAIN_ENGINE=dask is not an engine"):
        DistributedTrainer(2)
    assert DistributedTrainer(2, engine="serial").configuration["trainer"]["engine"] == "serial"
    for unset in ("", "auto"):
        monkeypatch.setenv("COMPSS_TRAIN_ENGINE", unset)
        assert DistributedTrainer(2).configuration["trainer"]["engine"] == "local"


def test_x_and_y_must_go_together(trainer):
    by = BlockedTensor.from_array(Y, (4, 1))
    for call in (
        lambda x: trainer.fit(x, by, **GOOD),
        lambda x: trainer.check_fit(x, by, **GOOD),
        lambda x: trainer.evaluate(x, by),
    ):
        with pytest.raises(ValueError, match=r"x has a grid of \(3, 1\) blocks and y one of \(4, 1\)"):
            call(BlockedTensor.from_array(X, (3, 1)))
        with pytest.raises(ValueError, match=r"block 2 has 14 samples in x and 15 in y \(58 and 60 in all\)"):
            call(BlockedTensor.from_array(X[:58], (4, 1)))
    with pytest.raises(ValueError, match="x has a grid"):
        trainer.fit(*blocked(X, Y, 4), **GOOD, validation_data=(BlockedTensor.from_array(X, (3, 1)), by))


def test_nothing_works_before_build():
    trainer = DistributedTrainer(2, engine="serial")
    for call in (
        lambda: trainer.fit(X, Y, **GOOD),
        lambda: trainer.check_fit(X, Y, **GOOD),
        lambda: trainer.fit_synchronous_with_GPU(X, Y, 2, 1),
        lambda: trainer.evaluate(X, Y),
        lambda: trainer.predict(X),
        trainer.model,
        trainer.get_parameters,
        lambda: trainer.set_parameters({}),
        lambda: trainer.restore("folder"),
    ):
        with pytest.raises(NotBuiltError, match=r"no network yet.*call build"):
            call()


STRANGE = list(mlp().parameters())


def loss(output, target):
    return output.mean()


class WithLock(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 2))
        self.body[0].guard = {"inner": threading.Lock()}


def with_back_reference():
    net = nn.Module()
    net.l = nn.Linear(2, 2)
    net.l.owner = [net]
    net.l.lock = threading.Lock()
    return net


LOCKED = lambda output, target, lock=threading.Lock(): output.sum()  # noqa: B008, E731


def with_buffer(buffer):
    net = mlp()
    net.register_buffer("graph", buffer)
    return net


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"net": nn.ReLU()}, ValueError, "ReLU has no parameters"),
        ({"net": nn.Linear(2, 2).requires_grad_(False)}, ValueError, "all parameters of Linear are frozen"),
        ({"net": nn.Linear}, TypeError, "must be a torch.nn.Module, not type; call the class"),
        ({"net": None}, TypeError, "must be a torch.nn.Module, not NoneType"),
        ({"net": nn.LazyLinear(3)}, ValueError, "lazy"),
        ({"optimizer": {"optimizer": "sgd", "lr": -1.0}}, ValueError, "Invalid learning rate"),
        ({"optimizer": {"optimizer": "lion", "lr": 1.0}}, ValueError, "unknown optimizer 'lion'"),
        ({"optimizer": {**SGD, "beta": 1}}, ValueError, r"no parameter \['beta'\]"),
        ({"loss": "hinge"}, ValueError, "unknown loss 'hinge'; choose one of"),
        ({"metric": loss}, ValueError, "metric name 'loss' is not text, or has another meaning"),
        ({"optimizer": lambda _: None}, TypeError, "returned a NoneType"),
        ({"optimizer": lambda _: torch.optim.SGD(STRANGE, lr=0.1)}, ValueError, "uses other parameters than those"),
        ({"metric": "f1"}, ValueError, "unknown metric 'f1'; choose one of"),
        ({"precision": "fp8"}, ValueError, "precision='fp8': choose one of 'fp32', 'bf16', 'fp16'"),
        ({"memory_format": "nhwc"}, ValueError, "choose one of 'contiguous', 'channels_last'"),
        ({"num_gpu": -1}, ValueError, "num_gpu=-1"),
        ({"gradients": 1.0}, TypeError, r"gradients=1.0: give Gradients\(...\)"),
        ({"net": mlp().to("meta")}, TypeError, "'0.weight' of the network is a tensor of .* on meta; give a dense"),
        (
            {"net": with_buffer(torch.eye(3).to_sparse())},
            TypeError,
            r"'graph' of .* torch\.sparse_coo on cpu",
        ),
        ({"net": WithLock()}, TypeError, r"net.body.0.guard\['inner'\] \(_thread.lock\).* cannot be pickled"),
        ({"loss": LOCKED}, TypeError, r"loss \(builtins.function\).* cannot be pickled"),
        ({"transform": WithLock()}, TypeError, "transform.body.0.guard.* cannot be pickled"),
        ({"net": with_back_reference()}, TypeError, r"net.l.lock \(_thread.lock\).* cannot be pickled"),
    ],
)
def test_build(changes, error, message):
    arguments = {"net": mlp(), "optimizer": SGD, "loss": "cross_entropy", **changes}
    with pytest.raises(error, match=message):
        DistributedTrainer(2, engine=NoTasks()).build(**arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpus_that_are_not_there():
    with pytest.raises(ValueError, match="num_gpu=1, but the serial engine has 0 GPUs; use num_gpu=0"):
        DistributedTrainer(2, engine=NoTasks()).build(mlp(), SGD, "mse", num_gpu=1)


def test_parameters_that_are_not_finite(trainer):
    for bad in (np.nan, np.inf):
        parameters = trainer.get_parameters()
        parameters["2.weight"][1, 2] = bad
        trainer.set_parameters(parameters)
        with pytest.raises(ValueError, match=r"'2\.weight' has NaN or infinite values before training"):
            trainer.fit(*blocked(X, Y, 4), **GOOD)


@pytest.mark.parametrize(
    "callback", [EarlyStopping(), EarlyStopping("val_accuracy"), Checkpoint("never", best="val_loss")]
)
def test_callbacks_that_go_by_validation_data_are_refused_without_any(trainer, callback):
    with pytest.raises(ValueError, match=r"monitors 'val_\w+', but records have no .* give fit validation_data="):
        trainer.fit(X, Y, **GOOD, callbacks=[callback])
