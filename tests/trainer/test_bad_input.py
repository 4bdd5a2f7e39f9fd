"""Wrong input is a clear error before any task starts, and ``check_fit`` finds what ``fit`` would
find.
"""

import random
import re
import threading

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import (
    BlockedTensor,
    DistributedTrainer,
    DivergedError,
    Gradients,
    Merge,
    NotBuiltError,
    PartialShuffle,
)
from compss_train.callbacks import Checkpoint, JsonLines, ProgressBar
from tests.helpers.callbacks import CopyingEngine, NoTasks
from tests.helpers.models import (
    ADAM,
    SGD,
    assert_same_bits,
    awkward_net,
    blocked,
    classification,
    mlp,
)


@pytest.fixture
def trainer():
    trainer = DistributedTrainer(2, engine=NoTasks(), seed=0)
    trainer.build(mlp(), SGD, "cross_entropy", "accuracy")
    return trainer


X, Y = classification()
GOOD = {"num_epochs": 1, "batch_size": 5}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("num_epochs=0", {"num_epochs": 0, "batch_size": 5}),
        ("num_epochs=1.5", {"num_epochs": 1.5, "batch_size": 5}),
        ("batch_size=0", {"num_epochs": 1, "batch_size": 0}),
        ("num_batches_per_worker=-1", {"num_epochs": 1, "num_batches_per_worker": -1}),
        ("num_batches_per_worker=None and batch_size=None", {"num_epochs": 1}),
        (
            "num_batches_per_worker=2",
            {"num_epochs": 1, "batch_size": 2, "num_batches_per_worker": 2},
        ),
        ("num_batches_per_worker=16", {"num_epochs": 1, "num_batches_per_worker": 16}),
        ("shuffle='all'", {**GOOD, "shuffle": "all"}),
        ("shuffle=True", {**GOOD, "shuffle": True}),
        ("shuffle='partial'", {**GOOD, "shuffle": "partial"}),
        ("rule='halving'", {**GOOD, "merge": Merge(rule="halving")}),
        (
            "optimizer_state='reset_blocks'",
            {**GOOD, "merge": Merge(optimizer_state="reset_blocks"), "shuffle": PartialShuffle()},
        ),
    ],
)
@pytest.mark.parametrize("method", ["fit", "check_fit"])
def test_options_of_a_fit(trainer, method, name, options, raises):
    with raises(ValueError, name):
        getattr(trainer, method)(*blocked(X, Y, 4), **options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("validation_data", value) for value in (X, X[:2], 0.2, "x", (X, Y, Y))),
        *(("callbacks", value) for value in (None, ProgressBar(), "progress")),
    ],
)
def test_options_of_another_type(trainer, name, value, raises):
    with raises(TypeError, name):
        trainer.fit(X, Y, **GOOD, **{name: value})


CALLS = [
    (
        "n_epocs_sync=-1",
        lambda trainer: trainer.fit_asynchronous_n_epochs_with_GPU(X, Y, 2, 1, n_epocs_sync=-1),
    ),
    (
        "num_batches_per_worker=None",
        lambda trainer: trainer.fit_synchronous_with_GPU(X, Y, None, 1),
    ),
    (
        "shuffle_blocks='yes'",
        lambda trainer: trainer.fit_synchronous_with_GPU(X, Y, 2, 1, shuffle_blocks="yes"),
    ),
    ("no samples", lambda trainer: trainer.fit(np.zeros((0, 6)), **GOOD)),
    ("'data.npy'", lambda trainer: trainer.fit("data.npy", **GOOD)),
    ("<U1", lambda trainer: trainer.fit(["a", "b"], **GOOD)),
]


@pytest.mark.parametrize(("name", "call"), CALLS)
def test_arguments_of_calls(trainer, name, call, raises):
    with raises(TypeError if name == "<U1" else ValueError, name):
        call(trainer)


def trainer_with(**options):
    return DistributedTrainer(**{"num_workers": 2, "engine": NoTasks(), **options})


@pytest.mark.parametrize(
    ("make", "given"),
    [
        *((trainer_with, {"num_workers": bad}) for bad in (0, -3, 1.0, "2", True)),
        *((trainer_with, {"seed": bad}) for bad in (-1, 0.5, 2**63)),
        (trainer_with, {"threads": 0}),
        (trainer_with, {"worker_timeout": 0}),
        (trainer_with, {"engine": "dask"}),
        *((Gradients, {"clip_norm": bad}) for bad in (0, float("inf"))),
        *((Gradients, {"clip_value": bad}) for bad in ("1", True)),
        (Gradients, {"clip_adaptive": -0.01}),
        (Gradients, {"clip_norm": 1.0, "clip_value": 0.5}),
        (Gradients, {"clip_norm": 1.0, "clip_adaptive": 0.5}),
        *((Gradients, {"accumulate": bad}) for bad in (0, 2.0)),
        (Gradients, {"on_nan": "stop"}),
        (PartialShuffle, {"pool_size": 0}),
        (PartialShuffle, {"pools": 3}),
    ],
)
def test_values_that_make_no_sense(make, given, raises):
    with raises(ValueError, " and ".join(f"{name}={value!r}" for name, value in given.items())):
        make(**given)


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
        with pytest.raises(
            ValueError, match=r"x has a grid of \(3, 1\) blocks and y one of \(4, 1\)"
        ):
            call(BlockedTensor.from_array(X, (3, 1)))
        with pytest.raises(
            ValueError, match=r"block 2 has 14 samples in x and 15 in y \(58 and 60 in all\)"
        ):
            call(BlockedTensor.from_array(X[:58], (4, 1)))
    with pytest.raises(ValueError, match="x has a grid"):
        trainer.fit(
            *blocked(X, Y, 4), **GOOD, validation_data=(BlockedTensor.from_array(X, (3, 1)), by)
        )


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


def nested(levels):
    net = mlp()
    for _ in range(levels):
        net = nn.Sequential(net)
    return net


def in_a_circle():
    net = nn.Sequential(mlp())
    net.append(net)
    return net


class Stateless(torch.optim.Optimizer):
    """As many public optimizers around others, it leaves out what torch's constructor makes."""

    def __init__(self, parameters):
        self.inner = torch.optim.SGD(parameters, lr=0.1)
        self.param_groups = self.inner.param_groups

    def step(self, closure=None):
        return self.inner.step(closure)


class WithFastState(Stateless):
    """Its state_dict has names of its own, as that of a public Lookahead."""

    def state_dict(self):
        saved = self.inner.state_dict()
        return {"fast_state": saved["state"], "param_groups": saved["param_groups"]}


GLOBAL_NET = mlp()


def loss_of_global_net(output, target):
    norms = sum(parameter.norm() for parameter in GLOBAL_NET.parameters())
    return nn.functional.cross_entropy(output, target) + norms


@pytest.mark.parametrize(
    ("changes", "error", "name"),
    [
        ({"net": nn.ReLU()}, ValueError, "ReLU"),
        ({"net": nn.Linear(2, 2).requires_grad_(False)}, ValueError, "frozen"),
        ({"net": nn.Linear}, TypeError, "not type"),
        ({"net": None}, TypeError, "not NoneType"),
        (
            {"net": nested(3000)},
            ValueError,
            ("a Sequential, contains itself, or is nested too deeply"),
        ),
        ({"net": nested(400)}, TypeError, "net contains itself, or is nested too deeply"),
        (
            {"net": in_a_circle()},
            ValueError,
            ("a Sequential, contains itself, or is nested too deeply"),
        ),
        ({"net": nn.LazyLinear(3)}, ValueError, "lazy"),
        ({"net": nn.Sequential(nn.Linear(8, 3), nn.LazyBatchNorm1d())}, ValueError, "lazy"),
        ({"optimizer": {"optimizer": "sgd", "lr": -1.0}}, ValueError, "lr=-1.0"),
        ({"optimizer": {"optimizer": "lion", "lr": 1.0}}, ValueError, "'lion'"),
        ({"optimizer": {**SGD, "beta": 1}}, ValueError, "'beta'"),
        ({"loss": "hinge"}, ValueError, "loss 'hinge'"),
        ({"metric": loss}, ValueError, "metric name 'loss'"),
        ({"optimizer": lambda _: None}, TypeError, "NoneType"),
        ({"optimizer": lambda _: torch.optim.SGD(STRANGE, lr=0.1)}, ValueError, "other parameters"),
        ({"optimizer": Stateless}, TypeError, "Stateless has no state_dict"),
        ({"optimizer": WithFastState}, TypeError, "the state_dict of WithFastState has"),
        (
            {"net": GLOBAL_NET, "loss": loss_of_global_net},
            ValueError,
            "loss_of_global_net uses the network by the global variable 'GLOBAL_NET'",
        ),
        ({"metric": "f1"}, ValueError, "metric 'f1'"),
        ({"precision": "fp8"}, ValueError, "precision='fp8'"),
        ({"memory_format": "nhwc"}, ValueError, "memory_format='nhwc'"),
        ({"num_gpu": -1}, ValueError, "num_gpu=-1"),
        ({"gradients": 1.0}, TypeError, "gradients=1.0"),
        ({"net": mlp().to("meta")}, ValueError, "meta device"),
        ({"net": with_buffer(torch.eye(3).to_sparse())}, TypeError, "'graph'"),
        ({"net": WithLock()}, TypeError, "net.body.0.guard['inner'] (_thread.lock)"),
        ({"loss": LOCKED}, TypeError, "loss (builtins.function)"),
        ({"transform": WithLock()}, TypeError, "transform.body.0.guard"),
        ({"net": with_back_reference()}, TypeError, "net.l.lock (_thread.lock)"),
    ],
)
def test_build(changes, error, name, raises):
    arguments = {"net": mlp(), "optimizer": SGD, "loss": "cross_entropy", **changes}
    with raises(error, name):
        DistributedTrainer(2, engine=NoTasks()).build(**arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpus_that_are_not_there():
    with pytest.raises(
        ValueError, match=("num_gpu=1, but the serial engine has 0 GPUs; use num_gpu=0")
    ):
        DistributedTrainer(2, engine=NoTasks()).build(mlp(), SGD, "mse", num_gpu=1)


def test_parameters_that_are_not_finite(trainer):
    for bad in (np.nan, np.inf):
        parameters = trainer.get_parameters()
        parameters["2.weight"][1, 2] = bad
        trainer.set_parameters(parameters)
        with pytest.raises(
            ValueError, match=r"'2\.weight' has NaN or infinite values before training"
        ):
            trainer.fit(*blocked(X, Y, 4), **GOOD)


FIT = {"num_epochs": 2, "batch_size": 7}


def trainer_of(net=None, *, engine=None, workers=2, **build):
    trainer = DistributedTrainer(workers, engine=engine or NoTasks(), seed=0, threads=1)
    trainer.build(net or awkward_net(), ADAM, "cross_entropy", "accuracy", **build)
    return trainer


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": "total"},
        {"shuffle": PartialShuffle(9, pools=2)},
        {"merge": Merge("commutative", rule="halving")},
        {"validation_data": (X, Y), "sample_weight": np.ones(len(X))},
    ],
)
def test_a_good_fit_passes_and_nothing_changes(tmp_path, options):
    trainer = trainer_of()
    before = trainer.get_parameters()
    torch_state = torch.get_rng_state()
    numpy_state = np.random.get_state()[1]
    python_state = random.getstate()
    writers = [Checkpoint(tmp_path / "checkpoints"), JsonLines(tmp_path / "history.jsonl")]
    trainer.check_fit(*blocked(X, Y, 4), **FIT, callbacks=writers, **options)
    assert_same_bits(trainer.get_parameters(), before)
    assert (trainer.history, trainer.configuration["fit"], list(tmp_path.iterdir())) == (
        [],
        None,
        [],
    )
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    assert random.getstate() == python_state


def test_a_fit_after_it_has_the_same_bits():
    def schedule(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    checked, plain = (trainer_of(engine="serial", schedule=schedule) for _ in range(2))
    checked.check_fit(*blocked(X, Y, 4), **FIT)
    checked.fit(*blocked(X, Y, 4), **FIT)
    checked.check_fit(*blocked(X, Y, 4), **FIT)
    plain.fit(*blocked(X, Y, 4), **FIT)
    assert_same_bits(checked.fit(*blocked(X, Y, 4), **FIT), plain.fit(*blocked(X, Y, 4), **FIT))


def error_of(call, *args, **options):
    with pytest.raises(Exception) as caught:
        call(*args, **options)
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("net", "x", "y"),
    [
        (mlp(inputs=5), X, Y),
        (mlp(outputs=2), X, Y),
        (mlp(), X, Y.astype(np.float32)),
        (mlp(), X.astype(np.complex64), Y),
    ],
)
def test_a_network_for_other_data_is_the_fits_error(net, x, y):
    trainer = trainer_of(net, engine="serial", workers=1)
    expected = error_of(trainer.fit, x, y, **FIT, shuffle=None, shuffle_block_data=False)
    assert error_of(trainer_of(net, workers=1).check_fit, x, y, **FIT) == expected


@pytest.mark.parametrize(
    "validation",
    [(X[:, :2], Y), (X, Y + 1), (X.astype(np.complex64), Y)],
    ids=["fewer columns", "labels from 1", "another dtype"],
)
@pytest.mark.parametrize("method", ["fit", "check_fit"])
def test_validation_data_are_tried_before_any_task(validation, method):
    with pytest.raises((RuntimeError, IndexError)) as caught:
        getattr(trainer_of(), method)(X, Y, validation_data=validation, **FIT)
    assert "This was an evaluation of validation_data." in caught.value.__notes__


def test_where_only_tasks_can_evaluate_validation_data_are_tried_before_training(monkeypatch):
    monkeypatch.setattr(CopyingEngine, "check_gpus", staticmethod(lambda num_gpu: None))
    monkeypatch.setattr(CopyingEngine, "device", lambda *_: "cpu")
    engine = CopyingEngine()
    with pytest.raises(RuntimeError, match="mat1 and mat2") as caught:
        trainer_of(engine=engine, num_gpu=1).fit(X, Y, validation_data=(X[:, :2], Y), **FIT)
    assert "This was an evaluation of validation_data." in caught.value.__notes__
    assert engine.submitted == ["evaluate"]


def test_a_nan_loss_is_found_unless_batches_are_skipped():
    bad = np.full_like(X, np.nan)
    with pytest.raises(
        DivergedError, match=("the loss became nan in the first batch; lower the learning rate")
    ):
        trainer_of().check_fit(bad, Y, **FIT)
    trainer_of(gradients=Gradients(on_nan="skip")).check_fit(bad, Y, **FIT)


def test_a_batch_that_fails_on_the_cpu_is_a_warning_for_gpus(monkeypatch):
    monkeypatch.setattr(NoTasks, "check_gpus", staticmethod(lambda num_gpu: None))
    with pytest.warns(
        UserWarning, match=("no batch was tried on a GPU.* shapes cannot be multiplied")
    ):
        trainer_of(mlp(inputs=5), num_gpu=1).check_fit(X, Y, **FIT)


def test_missing_arguments_are_named():
    with pytest.raises(TypeError, match=r"missing 1 required keyword-only argument: 'num_epochs'"):
        trainer_of().check_fit(X, Y, batch_size=3)


def test_a_checkpoint_is_checked_and_not_loaded(tmp_path):
    whole = trainer_of(engine="serial")
    whole.fit(*blocked(X, Y, 4), **FIT, callbacks=[Checkpoint(tmp_path)])
    again = trainer_of()
    before = again.get_parameters()
    again.check_fit(*blocked(X, Y, 4), num_epochs=3, batch_size=7, resume=tmp_path)
    assert_same_bits(again.get_parameters(), before)
    assert (again.history, again.resumed_from) == ([], None)
    with pytest.raises(ValueError, match=re.escape("checkpoint of another network")):
        trainer_of(mlp()).check_fit(*blocked(X, Y, 4), **FIT, resume=tmp_path)
