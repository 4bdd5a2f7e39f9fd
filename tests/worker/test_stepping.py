"""Steps of several batches, and of batches that are not finite, which leave nothing behind."""

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer, DivergedError, Gradients, Merge, PartialShuffle
from compss_train.callbacks import Checkpoint
from compss_train.engines.calls import intra_op_threads
from compss_train.model.losses import cross_entropy
from tests.helpers.cases import each_value
from tests.helpers.models import (
    ADAM,
    SGD,
    assert_close,
    assert_same_bits,
    awkward_net,
    blocked,
    classification,
    mlp,
)
from tests.helpers.small_fits import STILL, assert_alike, fit, trainer_of
from tests.helpers.tolerances import sgd_error, sum_error

X, Y = classification(samples=62)


def built(
    engine="serial", workers=1, net=awkward_net, optimizer=SGD, loss="cross_entropy", **options
):
    return trainer_of(
        engine, workers, seed=3, net=net, optimizer=optimizer, loss=loss, metric=None, **options
    )


@pytest.mark.parametrize(
    ("merge", "shuffle", "accumulate", "steps"),
    [
        (Merge(), "blocks", 4, 3 * 3),  # 9 batches an epoch
        (Merge(every=0), "blocks", 4, 3 * 3),
        (Merge(every=2), PartialShuffle(), 4, 3 * 3),
        (Merge(unit="blocks"), "blocks", 9, 3 * 3),
        (Merge(every=3, unit="batches"), "blocks", 2, 3 * 3 * 2),
    ],
    ids=str,
)
def test_a_step_ends_with_the_epoch_and_the_round(merge, shuffle, accumulate, steps):
    trainer = built(optimizer=ADAM, gradients=Gradients(accumulate=accumulate))
    trainer.fit(
        *blocked(X, Y, 3), num_epochs=3, num_batches_per_worker=3, shuffle=shuffle, merge=merge
    )
    (worker,) = trainer.snapshot().workers
    assert {state["step"].item() for state in worker.optimizer["state"].values()} == {steps}


class Spoilt(nn.Module):
    """Only its gradient is not finite where a target is 99, and only its value where one is 96."""

    def forward(self, output, target):
        bad = torch.where(target == 99, 0.0, 1.0)
        constant = torch.where(target == 96, float("inf"), 0.0).sum()
        return (
            cross_entropy(output, target % 3)
            + constant
            + 0 * (output[:, 0] * bad).pow(2).sqrt().sum()
        )


def spoilt(batch, how):
    """Return the data with one of the batches of 5 that is not finite."""
    x = X[:60].copy()
    y = Y[:60].copy()
    if how in ("gradient", "loss"):
        y[batch * 5] = {"gradient": 99, "loss": 96}[how]
    else:
        x[batch * 5] = float(how)
    return x, y


def without(batch):
    kept = np.r_[0 : batch * 5, (batch + 1) * 5 : 60]
    return X[kept], Y[kept]


def skipping(data, optimizer=SGD, precision="fp32", **gradients):
    trainer = built(
        optimizer=optimizer,
        loss=Spoilt(),
        net=normed,
        gradients=Gradients(on_nan="skip", **gradients),
        precision=precision,
    )
    return trainer, trainer.fit(*data, num_epochs=2, batch_size=5, **STILL)


def normed():
    net = awkward_net()
    net[3].p = 0.0  # what a skipped batch draws is not drawn again
    return net


@pytest.mark.parametrize(
    ("skipped", "how"),
    each_value(
        [
            (0, {}),
            (5, {}),
            (11, {}),
            (5, {"optimizer": ADAM, "clip_norm": 0.5}),
            (11, {"precision": "bf16"}),
        ],
        ["nan", "inf", "gradient", "loss"],
    ),
    ids=str,
)
def test_a_batch_that_is_skipped_leaves_nothing_behind(skipped, how):
    batch, options = skipped
    trainer, ours = skipping(spoilt(batch, how), **options)
    other, theirs = skipping(without(batch), **options)
    assert_same_bits(ours, theirs)
    for record, expected in zip(trainer.history, other.history, strict=True):
        assert record["loss"] == expected["loss"]
        assert (record["skipped_batches"], record["workers"][0]["skipped_batches"]) == (1, 1)
        assert (record["samples"], record["workers"][0]["samples"]) == (55, 55)
        assert "skipped_batches" not in expected


@pytest.mark.parametrize("batch", [0, 4, 11])
@pytest.mark.parametrize("how", ["nan", "gradient"])
def test_only_one_of_several_batches_a_step_is_skipped(batch, how):
    """The batches after it move up, so that the last step is of one less."""
    _, ours = skipping(spoilt(batch, how), accumulate=3)
    _, theirs = skipping(without(batch), accumulate=3)
    assert_same_bits(ours, theirs)


class Buffers(nn.Module):
    """A buffer by two names, of which the first forward pass replaces one, and a sum of inputs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("one", torch.zeros(1))
        self.register_buffer("other", self.one)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.one = self.one + 1
        self.other += 1
        self.seen = self.seen + x.sum()
        return self.linear(x)


@pytest.mark.parametrize("batch", [0, 3])
def test_buffers_are_put_back_after_a_skipped_batch(batch):
    trainer = built(net=Buffers, gradients=Gradients(on_nan="skip"))
    final = trainer.fit(*spoilt(batch, "nan"), num_epochs=1, batch_size=5, **STILL)
    (x, _) = without(batch)
    assert (final["one"].item(), final["other"].item()) == (11, 11)
    assert final["seen"].item() == pytest.approx(
        x.sum(), abs=sum_error(np.float32, x.size, np.abs(x).sum())
    )


def test_who_skipped_what_is_told():
    x, y = spoilt(2, "nan")
    x[25] = np.nan  # of the other half
    x[35] = np.nan
    trainer = built(workers=2, gradients=Gradients(on_nan="skip"))
    trainer.fit(*blocked(x, y, 2), num_epochs=1, batch_size=5, **STILL)
    (record,) = trainer.history
    assert record["skipped_batches"] == 3
    assert [worker["skipped_batches"] for worker in record["workers"]] == [2, 1]
    x[25] = 0
    x[10] = 0
    trainer.fit(*blocked(x, y, 2), num_epochs=1, batch_size=5, **STILL)
    assert ["skipped_batches" in worker for worker in trainer.history[1]["workers"]] == [
        False,
        True,
    ]


@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
def test_a_worker_that_skips_everything_ends_the_fit(merge):
    x = X.copy()
    y = Y
    x[31:] = np.nan
    trainer = built(workers=2, gradients=Gradients(on_nan="skip"), net=mlp)
    good = trainer.get_parameters()
    with pytest.raises(
        DivergedError, match=r"in all 7 batches of round 0 on worker 1, .* nothing was trained"
    ):
        trainer.fit(*blocked(x, y, 2), num_epochs=1, batch_size=5, merge=merge, **STILL)
    assert_same_bits(trainer.get_parameters(), good)


@pytest.mark.parametrize("on_nan", ["raise", "skip"])
@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
def test_a_last_step_that_leads_to_infinity_is_never_merged(merge, on_nan):
    trainer = built(
        workers=2,
        gradients=Gradients(on_nan=on_nan),
        net=mlp,
        optimizer={"optimizer": "sgd", "lr": 1e38},
    )
    before = trainer.get_parameters()
    with pytest.raises(
        DivergedError, match=r"parameter '0.weight' became NaN or infinite in round 0 on worker 0"
    ):
        trainer.fit(
            *blocked(X * 1e3, Y, 2),
            num_epochs=1,
            num_batches_per_worker=1,
            merge=merge,
            progress=False,
        )
    assert_same_bits(trainer.get_parameters(), before)


def test_ignored_values_that_are_not_finite_are_trained_on():
    trainer = built(gradients=Gradients(on_nan="ignore"))
    final = trainer.fit(
        *spoilt(3, "nan"), num_epochs=2, batch_size=5, validation_data=(X, Y), **STILL
    )
    assert all(
        np.isnan(record["loss"]) and np.isnan(record["val_loss"]) for record in trainer.history
    )
    assert np.isnan(final["0.weight"]).all()


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 3, sparse=True)

    def forward(self, x):
        return self.table(x[:, 0].abs().long().clamp(max=2))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_sparse_gradients_are_skipped_and_accumulated_too(accumulate):
    sgd = {"optimizer": "sgd", "lr": 0.5}
    results = []
    for net in (Sparse(), Sparse()):
        net.table.sparse = not results
        net.load_state_dict({"table.weight": torch.ones(3, 3)})
        trainer = built(
            net=lambda net=net: net,
            optimizer=sgd,
            gradients=Gradients(accumulate=accumulate, on_nan="skip"),
        )
        results.append(trainer.fit(X, Y, num_epochs=2, batch_size=5, **STILL))
    steps = 2 * len(X) // 5 + 2  # those of a row of the table make its weights larger, up to 2
    assert_close(*results, sgd_error(np.float32, steps, 0.5, samples=5 * accumulate, weight=2.0))


LARGE_X, LARGE_Y = classification(samples=57)
LARGE_X = 30 * LARGE_X
"""So large that the first gradients overflow."""
FP16 = {"precision": "fp16", "optimizer": SGD, "net": mlp}


def scales(trainer):
    return [state.scaler["scale"] for state in trainer.snapshot().workers]


def test_each_worker_keeps_its_scaler_and_resumes_with_it(tmp_path):
    """Steps that overflow halve the scale, which starts at 65,536."""
    whole = trainer_of(**FP16)
    resumed = trainer_of(**FP16)
    fit(whole, Checkpoint(tmp_path, keep=9), data=blocked(LARGE_X, LARGE_Y, 7))
    assert all(0 < scale < 65536 for scale in scales(whole))
    fit(resumed, data=blocked(LARGE_X, LARGE_Y, 7), resume=tmp_path / "round-000001")
    assert_alike(resumed, whole)


@pytest.mark.parametrize("state", ["keep", "reset_blocks"])
@pytest.mark.parametrize("optimizer", [{**ADAM, "fused": True}, {**SGD, "fused": True}])
def test_fused_optimizers_leave_out_steps_that_overflow(optimizer, state):
    trainer = trainer_of(**FP16 | {"optimizer": optimizer})
    merge = Merge(optimizer_state=state)
    trained = fit(trainer, data=blocked(LARGE_X, LARGE_Y, 7), merge=merge)
    assert all(np.isfinite(array).all() for array in trained.values())
    assert all(0 < scale < 65536 for scale in scales(trainer))


def update_both(model, batch, context):
    x, y = batch
    hidden = model["first"](x).relu()
    context.update("second", context.loss(model["second"](hidden.detach()), y))
    loss = context.loss(model["second"](hidden), y)
    context.update("first", loss)
    return loss


def test_several_optimizers_share_a_scaler():
    """As the loop that any of them would be in: with the scale as it is at that time."""
    modules = nn.ModuleDict({"first": nn.Linear(6, 16), "second": nn.Linear(16, 3)})
    trainer = DistributedTrainer(1, engine="serial", seed=0, threads=1)
    optimizers = {"first": SGD, "second": SGD}
    trainer.build(modules, optimizers, "cross_entropy", training_step=update_both, precision="fp16")
    options = {"shuffle": None, "shuffle_block_data": False, "progress": False}
    ours = trainer.fit(LARGE_X, LARGE_Y, num_epochs=2, batch_size=19, **options)
    sgd = {
        name: torch.optim.SGD(modules[name].parameters(), lr=0.05, momentum=0.9) for name in modules
    }
    scaler = torch.amp.GradScaler("cpu")
    batches = [
        *zip(torch.from_numpy(LARGE_X).split(19), torch.from_numpy(LARGE_Y).split(19), strict=True)
    ]
    with intra_op_threads(1):
        for x, y in batches * 2:
            with torch.autocast("cpu", torch.float16):
                hidden = modules["first"](x).relu()
                loss = nn.functional.cross_entropy(modules["second"](hidden.detach()), y)
            step(sgd["second"], loss, scaler)
            with torch.autocast("cpu", torch.float16):
                loss = nn.functional.cross_entropy(modules["second"](hidden), y)
            step(sgd["first"], loss, scaler)
    assert_same_bits(ours, {name: tensor.numpy() for name, tensor in modules.state_dict().items()})
    assert scales(trainer) == [scaler.get_scale()]


def step(optimizer, loss, scaler):
    optimizer.zero_grad()
    inputs = optimizer.param_groups[0]["params"]
    torch.autograd.backward(scaler.scale(loss), inputs=inputs)
    scaler.step(optimizer)
    scaler.update()


def test_outputs_are_predicted_in_float32():
    trainer = trainer_of(**FP16)
    assert trainer.predict(LARGE_X).dtype == np.float32


class NoGradient(nn.Module):
    """Its gradient is NaN, its value is not."""

    def forward(self, output, target):
        return nn.functional.cross_entropy(output, target) + (0 * output).sqrt().sum()


def test_gradients_that_are_never_finite_end_the_fit():
    """Without an error the scaler would leave out every step."""
    trainer = trainer_of(
        workers=1, net=mlp, optimizer=SGD, loss=NoGradient(), metric=None, precision="fp16"
    )
    with pytest.raises(
        DivergedError, match=r"loss scale of fp16 fell to .* in round 0 on worker 0.*bf16"
    ):
        trainer.fit(LARGE_X, LARGE_Y, num_epochs=1, batch_size=1, progress=False)


def test_what_fp16_does_not_go_with_is_refused():
    trainer = DistributedTrainer(1, engine="serial")
    with pytest.raises(ValueError, match="parameters in float32, and the network has float16"):
        trainer.build(mlp().half(), SGD, "mse", precision="fp16")
    with pytest.raises(ValueError, match="fp16"):
        trainer.build(mlp(), SGD, "mse", precision="half")
