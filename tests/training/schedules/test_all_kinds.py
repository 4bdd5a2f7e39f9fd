"""Laws 2, 3 and 4: what merging means, whether or not workers wait for each other, with outer steps
and without.
"""

import os

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import BlockedTensor, Merge, PartialShuffle, SerialEngine
from compss_train.exceptions import DivergedError
from tests.engines import tasks
from tests.helpers.cases import each_value, slow
from tests.helpers.models import (
    MODES,
    SGD,
    assert_close,
    assert_same_bits,
    awkward_net,
    blocked,
    classification,
    mlp,
)
from tests.helpers.small_fits import (
    PLAIN_SGD,
    STILL,
    X,
    Y,
    assert_alike,
    combined,
    fit,
    fitted,
    trainer_of,
)
from tests.helpers.tolerances import largest, sgd_error, sum_error

KINDS = ["synchronous", "commutative", "parameter_server"]
ON_ARRIVAL = KINDS[1:]
MEAN = {"optimizer": "sgd", "lr": 1.0}
NESTEROV = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
OUTER_ADAM = {"optimizer": "adam", "lr": 0.01}
EVERYTHING = Merge(outer_optimizer=NESTEROV, optimizer_state="average", averaging="ema")


def everything(**options):
    return Merge.of(combined({"merge": EVERYTHING}, merge=Merge(**options))["merge"])


@pytest.mark.parametrize("merge", KINDS)
@pytest.mark.parametrize("workers", [2, 3])
def test_one_batch_each_is_one_step_on_the_joint_batch(engine, workers, merge):
    x, y = classification(samples=workers * 20)
    apart = fitted(
        engine, workers, *blocked(x, y, workers), num_epochs=1, batch_size=20, merge=merge, **STILL
    )
    joint = fitted(engine, 1, *blocked(x, y, 1), num_epochs=1, num_batches_per_worker=1, **STILL)
    # A step, and a merge.
    assert_close(apart, joint, sgd_error(np.float32, 2, 0.1, samples=workers * 20))


@pytest.mark.parametrize("merge", KINDS)
def test_a_worker_without_samples_has_no_vote(engine, merge):
    x, y = classification()
    # Rounds that do not wait see each other's updates as they arrive, so only a single one is
    # comparable.
    options = {
        **STILL,
        "num_epochs": 2,
        "batch_size": 10,
        "merge": Merge(merge, every=int(merge == "synchronous")),
    }
    two = fitted(engine, 2, *blocked(x, y, 2), net=awkward_net(), **options)
    told = (
        "5 workers share 2 blocks, so some have nothing to train; cut the data into at least "
        "5 blocks, or"
    )
    with pytest.warns(UserWarning, match=told):
        five = fitted(engine, 5, *blocked(x, y, 2), net=awkward_net(), **options)
    # Versions of the same bits, merged.
    assert_close(two, five, sum_error(np.float32, 2, largest(two)))
    # One order.
    if merge == "synchronous" or (merge == "parameter_server" and isinstance(engine, SerialEngine)):
        assert_same_bits(two, five)


@pytest.mark.filterwarnings("ignore:5 workers share 2 blocks")
@pytest.mark.parametrize(
    "merge",
    [
        Merge("commutative", outer_optimizer=NESTEROV),
        Merge("parameter_server", every=0, outer_optimizer=NESTEROV),
        Merge(outer_optimizer=NESTEROV, optimizer_state="average", averaging=0.5),
        everything(averaging=0.9, averaging_unit="steps"),
        everything(dtype="bf16"),
        everything(dtype="int8"),
    ],
    ids=str,
)
def test_a_worker_without_samples_takes_no_outer_step(merge):
    two, five = (trainer_of(workers=workers, optimizer=SGD) for workers in (2, 5))
    assert_same_bits(fit(two, blocks=2, merge=merge), fit(five, blocks=2, merge=merge))
    if merge.averaging is not None:
        assert_same_bits(*(dict(averaged(trainer)) for trainer in (two, five)))


def averaged(trainer):
    return {
        name: tensor.numpy() for name, tensor in trainer.model(averaged=True).state_dict().items()
    }


@pytest.mark.parametrize(
    ("merge", "workers"),
    [*(("commutative", n) for n in (1, 2, 5)), *(("parameter_server", n) for n in (2, 3))],
)
def test_one_merge_at_the_end_is_the_mean_by_samples(engine, merge, workers):
    x, y = classification(samples=64)
    options = {"optimizer": SGD, "num_epochs": 3, "batch_size": 4, "shuffle": "total"}
    results = [
        fitted(
            engine,
            workers,
            *blocked(x, y, 7),
            net=awkward_net(),
            merge=Merge(each, every=0),
            **options,
        )
        for each in ("synchronous", merge)
    ]
    # Of the same bits, merged.
    assert_close(*results, sum_error(np.float32, 2 * workers, largest(*results)))


@pytest.mark.parametrize("merge", ["synchronous", "parameter_server"])
def test_integer_buffers_take_the_maximum_and_statistics_are_averaged(engine, merge):
    x, y = classification(samples=30)
    cuts = [slice(0, 10), slice(10, 30)]
    data = [BlockedTensor([[array[cut]] for cut in cuts]) for array in (x, y)]
    net = awkward_net()
    net[3].p = 0.0  # workers draw random numbers of their own
    merged = fitted(engine, 2, *data, net=net, num_epochs=1, batch_size=5, merge=merge, **STILL)
    assert merged["1.num_batches_tracked"] == 4
    if merge == "synchronous":
        alone = [
            fitted(engine, 1, x[cut], y[cut], net=net, num_epochs=1, batch_size=5, **STILL)
            for cut in cuts
        ]
        mean = (
            10 * alone[0]["1.running_mean"].astype(np.float64) + 20 * alone[1]["1.running_mean"]
        ) / 30
        rounding = sum_error(np.float32, 1, np.abs(mean).max())
        np.testing.assert_allclose(merged["1.running_mean"], mean, rtol=0, atol=rounding)


@pytest.mark.parametrize("options", [*slow({}), {"merge": Merge(unit="blocks")}], ids=str)
@pytest.mark.parametrize("merge", ["commutative", "parameter_server"])
def test_batch_norm_survives_rounds_that_do_not_wait(engine, merge, options):
    """Variances shrink fast in the first rounds: changes against stale bases would make them
    negative.
    """
    x, y = classification(samples=160)
    trainer = trainer_of(engine, 8)
    data = blocked(x / 100, y, 16)
    options = combined(options, num_epochs=3, batch_size=5, validation_data=data, merge=merge)
    trained = fit(trainer, data=data, **options)
    assert (trained["1.running_var"] > 0).all()
    assert trained["1.num_batches_tracked"] >= 3 * 160 / 5 / 8
    assert all(np.isfinite(record["val_loss"]) for record in trainer.history)
    assert (
        sum(worker["samples"] for record in trainer.history for worker in record["workers"])
        == 3 * 160
    )
    measured = trainer.history[-1]["val_loss"]
    assert trainer.evaluate(*data)["loss"] == pytest.approx(
        measured, rel=sum_error(np.float32, 160)
    )


@pytest.mark.parametrize(
    ("merge", "workers"),
    [
        (Merge("parameter_server"), 1),
        (Merge("commutative", outer_optimizer=NESTEROV), 1),
        (EVERYTHING, 3),
        (Merge(dtype="int8"), 3),
    ],
    ids=str,
)
def test_a_second_fit_continues_with_the_state_of_the_merge(merge, workers):
    once = trainer_of(workers=workers)
    twice = trainer_of(workers=workers)
    fit(once, num_epochs=4, merge=merge)
    fit(twice, num_epochs=1, merge=merge)
    fit(twice, num_epochs=3, merge=merge)
    assert_alike(once, twice)
    fit(twice, num_epochs=1)
    assert all(state.error is None for state in twice.snapshot().workers)


@pytest.mark.parametrize(
    ("merge", "outer"),
    [
        ("synchronous", {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1}),
        ("commutative", NESTEROV),
        ("parameter_server", {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1}),
    ],
)
def test_outer_steps_leave_frozen_weights_and_statistics_alone(merge, outer):
    def frozen():
        net = awkward_net()
        net[0].requires_grad_(False)
        return net

    ours, plain = (
        fit(trainer_of(net=frozen), num_epochs=1, merge=Merge(merge, every=0, outer_optimizer=each))
        for each in (outer, None)
    )
    for name in ("0.weight", "0.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert ours[name].tobytes() == plain[name].tobytes()
    assert (ours["4.weight"] != plain["4.weight"]).all()


UNCHANGED = [
    ("synchronous", "blocks", torch.float16),
    ("synchronous", "total", torch.float32),
    ("synchronous", PartialShuffle(), torch.float64),
    *((each, "blocks", dtype) for each in ON_ARRIVAL for dtype in (torch.float16, torch.float32)),
]


@pytest.mark.parametrize(("case", "mode"), each_value(UNCHANGED, [MODES[1], MODES[3]]), ids=str)
def test_an_outer_learning_rate_of_1_without_momentum_changes_nothing(case, mode):
    """Not a bit: outer steps are in double precision, where w - (-change) is w + change."""
    merge, shuffle, dtype = case
    x = X.astype(torch.empty(0, dtype=dtype).numpy().dtype)
    build = (
        {} if dtype == torch.float32 else {"net": lambda: mlp().to(dtype), "optimizer": PLAIN_SGD}
    )
    fits = [
        fit(
            trainer_of(metric=None, **build),
            data=blocked(x, Y, 7),
            shuffle=shuffle,
            **combined(mode, merge=each),
        )
        for each in (Merge(merge, outer_optimizer=MEAN), merge)
    ]
    assert_same_bits(*fits)


@pytest.mark.parametrize("merge", ON_ARRIVAL)
def test_one_worker_with_an_outer_optimizer_is_synchronous(engine, merge):
    """One push a round; a server rounds to single precision when it is pulled, and not its own
    parameters.
    """
    x, y = classification(samples=60)
    options = {**STILL, "num_epochs": 2, "batch_size": 10}
    ours, theirs = (
        fitted(
            engine,
            1,
            *blocked(x, y, 6),
            merge=Merge(each, unit="batches", outer_optimizer=NESTEROV),
            **options,
        )
        for each in (merge, "synchronous")
    )
    assert_close(
        ours, theirs, sgd_error(np.float32, 2 * 12, 0.1 * 0.7 * 1.9, samples=10, momentum=0.9)
    )


class Scaled(nn.Module):
    """Has a weight without dimensions."""

    def __init__(self):
        super().__init__()
        self.inner = mlp()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.inner(x) * self.scale


@pytest.mark.parametrize(
    ("merge", "workers"), [(Merge(outer_optimizer=MEAN), 3), (Merge("parameter_server"), 1)]
)
def test_weights_without_dimensions_are_merged(merge, workers):
    ours, plain = (trainer_of(workers=workers, net=Scaled, optimizer=PLAIN_SGD) for _ in range(2))
    assert_same_bits(fit(ours, merge=merge), fit(plain))
    assert fit(ours, merge=Merge(outer_optimizer=NESTEROV))["scale"].shape == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Merge(outer_optimizer=NESTEROV), Merge(outer_optimizer=OUTER_ADAM)),
        (Merge("commutative", outer_optimizer=NESTEROV), Merge("commutative")),
        (Merge(outer_optimizer=OUTER_ADAM), Merge(outer_optimizer={**OUTER_ADAM, "amsgrad": True})),
        (
            Merge(outer_optimizer={"optimizer": "rmsprop", "lr": 0.01}),
            Merge(outer_optimizer={"optimizer": "rmsprop", "lr": 0.01, "momentum": 0.9}),
        ),
    ],
    ids=str,
)
def test_another_outer_optimizer_or_kind_starts_anew(before, after):
    trainer, fresh = (trainer_of(workers=1, optimizer=PLAIN_SGD, net=mlp) for _ in range(2))
    fit(trainer, num_epochs=1, merge=before)
    assert trainer.snapshot().merge["outer"] is not None
    fit(fresh, num_epochs=1)  # for the same shuffles
    fresh.set_parameters(trainer.get_parameters())
    assert_same_bits(*(fit(each, num_epochs=1, merge=after) for each in (trainer, fresh)))
    assert (trainer.snapshot().merge["outer"] is None) == (after.outer_optimizer is None)


@pytest.mark.parametrize("merge", KINDS)
def test_an_outer_step_that_diverges_is_an_error(merge):
    outer = {"optimizer": "sgd", "lr": 1e38}
    with pytest.raises(
        DivergedError, match=r"outer_optimizer= made '\d\.\w+' NaN or infinite; lower its lr"
    ):
        fit(
            trainer_of(optimizer={"optimizer": "sgd", "lr": 100.0}),
            merge=Merge(merge, outer_optimizer=outer),
        )


@pytest.mark.parametrize(
    ("merge", "outer"),
    each_value(KINDS, [{"optimizer": "sgd", "lr": 0.5, "momentum": 0.5, "nesterov": True}, None]),
)
def test_an_engine_keeps_only_what_the_next_fit_needs(shared_local, merge, outer):
    def files():
        shared_local.fetch([shared_local.submit(tasks.add, 1)])
        names = (name for folder in shared_local.folders for name in os.listdir(folder))
        # A process makes its own when it starts.
        return {name for name in names if "heartbeat" not in name}

    x = np.random.default_rng(0).normal(size=(400, 200)).astype(np.float32)
    before = files()
    sizes = []
    trainer = trainer_of(
        shared_local,
        2,
        net=lambda: nn.Linear(200, 100),
        loss=lambda output, target: (output - target[:, :100]).square().mean(),
        metric=None,
    )
    for epochs in (1, 4):
        bx = BlockedTensor.from_array(x, (4, 1))
        trainer.fit(bx, num_epochs=epochs, batch_size=50, merge=Merge(merge, outer_optimizer=outer))
        trainer.evaluate(bx)
        trainer.predict(bx)
        sizes.append(len(files() - before))
    assert sizes[0] == sizes[1] <= 3, "recipe and two workers' states"
    trainer.close()
    assert files() == before
