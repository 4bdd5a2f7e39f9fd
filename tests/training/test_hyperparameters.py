"""Hyperparameters that are set during a fit: the bits of a plain loop that sets ``group["lr"]``."""

import copy
import re
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import LinearLR, OneCycleLR, ReduceLROnPlateau

from compss_train import DistributedTrainer, Merge, Schedule
from compss_train.callbacks import Callback, Checkpoint, Unfreeze
from compss_train.engines.calls import intra_op_threads
from compss_train.exceptions import NotBuiltError
from compss_train.model.devices import random_state
from compss_train.training.checkpoints import list_checkpoints
from tests.helpers.callbacks import CallAt, LookaheadEngine, StopAfter
from tests.helpers.cases import slow
from tests.helpers.models import (
    ADAM,
    SGD,
    assert_same_bits,
    awkward_net,
    blocked,
    classification,
    mlp,
    state_arrays,
)
from tests.helpers.plain_loop import cut, tensor
from tests.helpers.small_fits import STILL, X, Y, assert_alike, fit, trainer_of

ONE_BLOCK = {"blocks": 1, "batch_size": 19, "num_epochs": 5, **STILL}


class Penalized:
    """A loss with a weight, in an attribute."""

    def __init__(self, weight=0.0):
        self.weight = weight

    def __call__(self, output, target):
        return nn.functional.cross_entropy(output, target) + self.weight * output.pow(2).mean()


class SelfChanging(Penalized):
    """Changes its weight itself."""

    def __call__(self, output, target):
        self.weight *= 0.5
        return super().__call__(output, target)


class Setter(Callback):
    """Sets values at the ends of rounds."""

    sets_hyperparameters = True

    def __init__(self, plan):
        self.plan = plan

    def on_round_end(self, trainer, record):
        for values in self.plan.get(record["round"], []):
            trainer.set_hyperparameters(**values)


class UndeclaredSetter(Setter):
    """Does not say that it sets values."""

    sets_hyperparameters = False


PLAN = {
    0: [{"lr": 0.003}],
    2: [{"weight_decay": 0.1}, {"attributes": {"loss.weight": 0.5}}],
    3: [{"lr": 0.02, "attributes": {"network.3.p": 0.6}}],
}


def plain(make_optimizer, plan, epochs, x=X, y=Y, weight=0.1):
    """Train in a plain loop that sets values after epochs."""
    net = awkward_net()
    optimizer = make_optimizer(net.parameters())
    loss = Penalized(weight)
    objects = {"loss.weight": (loss, "weight"), "network.3.p": (net[3], "p")}
    with intra_op_threads(1), random_state(0, "cpu"):
        for epoch in range(epochs):
            for batch_x, batch_y in cut(x, y, 1, 3):
                optimizer.zero_grad()
                loss(net(tensor(batch_x)), tensor(batch_y)).backward()
                optimizer.step()
            for values in plan.get(epoch, []):
                for path, value in values.get("attributes", {}).items():
                    setattr(*objects[path], value)
                options = {name: values[name] for name in values if name != "attributes"}
                for group in optimizer.param_groups:
                    group.update(options)
    return state_arrays(net)


@pytest.mark.parametrize(
    ("optimizer", "make_optimizer"),
    [
        (ADAM, partial(torch.optim.Adam, lr=0.01)),
        (SGD, partial(torch.optim.SGD, lr=0.05, momentum=0.9)),
        ({"optimizer": "adamw", "lr": 0.01}, partial(torch.optim.AdamW, lr=0.01)),
    ],
    ids=["adam", "sgd", "adamw"],
)
def test_one_worker_is_a_plain_loop_that_sets_the_values_between_epochs(
    engine, optimizer, make_optimizer
):
    trainer = trainer_of(engine, workers=1, optimizer=optimizer, loss=Penalized(0.1))
    ours = fit(trainer, Setter(PLAN), **ONE_BLOCK)
    assert_same_bits(ours, plain(make_optimizer, PLAN, 5))
    rates = [record.get("lr") for record in trainer.history]
    assert rates == [None, 0.003, 0.003, 0.003, 0.02]


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "lr": st.floats(0, 0.1),
        "weight_decay": st.floats(0, 0.5),
        "betas": st.tuples(st.floats(0, 0.9), st.floats(0.5, 0.99)),
        "attributes": st.fixed_dictionaries({"loss.weight": st.floats(-1, 1)}),
    },
).filter(bool)


@given(plan=st.dictionaries(st.integers(0, 3), st.lists(OPTIONS, max_size=2)))
def test_any_values_in_any_epochs_are_those_of_a_plain_loop(plan):
    trainer = trainer_of(workers=1, loss=Penalized(0.1))
    ours = fit(trainer, Setter(plan), **ONE_BLOCK)
    assert_same_bits(ours, plain(partial(torch.optim.Adam, lr=0.01), plan, 5))


@pytest.mark.parametrize(
    "merge",
    [
        Merge(),
        Merge(optimizer_state="average"),
        Merge(optimizer_state="reset"),
        Merge(optimizer_state="reset_blocks"),
        Merge(every=1, unit="blocks"),
        *slow(Merge(every=2), Merge(dtype="int8")),
    ],
    ids=str,
)
def test_engines_and_resumes_give_the_same_bits(merge, shared_local, tmp_path):
    options = {"merge": merge, "num_epochs": 5}
    whole, local = (trainer_of(engine, loss=Penalized(0.1)) for engine in ("serial", shared_local))
    fit(whole, Setter(PLAN), Checkpoint(tmp_path, keep=99), **options)
    fit(local, Setter(PLAN), **options)
    assert_alike(local, whole)
    assert local.hyperparameters == whole.hyperparameters
    without = trainer_of(loss=Penalized(0.1))
    fit(without, **options)
    assert not_same(without, whole)
    checkpoints = list_checkpoints(tmp_path)
    for number in range(max(PLAN) + 2):  # nothing is set in later rounds
        resumed = trainer_of(loss=Penalized(0.1))
        fit(resumed, Setter(PLAN), resume=checkpoints[number], **options)
        assert_alike(resumed, whole)
        assert resumed.hyperparameters == whole.hyperparameters


def not_same(one, other):
    arrays = zip(one.get_parameters().values(), other.get_parameters().values(), strict=True)
    return any(first.tobytes() != second.tobytes() for first, second in arrays)


@pytest.mark.parametrize(
    "merge",
    [
        Merge("commutative"),
        Merge("commutative", quorum=0),
        Merge("parameter_server"),
    ],
    ids=str,
)
def test_merges_that_do_not_wait_take_the_values_in_the_next_round(merge, engine):
    """All workers have begun no round that is not complete."""
    trainer = trainer_of(engine, workers=1, loss=Penalized(0.1))
    ours = fit(trainer, Setter(PLAN), merge=merge, **ONE_BLOCK)
    expected = plain(partial(torch.optim.Adam, lr=0.01), PLAN, 5)
    if merge.kind == "commutative" and merge.quorum is None:
        assert_same_bits(ours, expected)
    else:  # changes are added, which rounds
        for name, array in ours.items():
            assert array == pytest.approx(expected[name], abs=1e-4), name
    several = trainer_of(engine, workers=3)
    fit(several, Setter({0: [{"lr": 0.0}]}), merge=merge)
    assert [record.get("lr") for record in several.history] == [None, 0.0, 0.0]
    frozen = several.get_parameters()["0.weight"]
    fit(several, merge=merge)
    assert several.get_parameters()["0.weight"] == pytest.approx(frozen, abs=1e-6)


def test_several_workers_are_averages_of_plain_loops():
    """Two workers without momentum, on a block each, merged once an epoch."""
    x, y = classification(samples=40)
    trainer = trainer_of(workers=2, net=mlp, optimizer={"optimizer": "sgd", "lr": 0.1})
    ours = fit(
        trainer,
        Setter({0: [{"lr": 0.025}]}),
        data=blocked(x, y, 2),
        num_epochs=3,
        batch_size=10,
        **STILL,
    )
    net = mlp()
    with intra_op_threads(1):
        for epoch in range(3):
            copies = []
            for part in (slice(20), slice(20, 40)):
                copied = copy.deepcopy(net)
                optimizer = torch.optim.SGD(copied.parameters(), lr=0.1 if epoch == 0 else 0.025)
                for batch_x, batch_y in cut(x[part], y[part], 1, 2):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(copied(tensor(batch_x)), tensor(batch_y)).backward()
                    optimizer.step()
                copies.append(copied.state_dict())
            net.load_state_dict(
                {name: (copies[0][name] + copies[1][name]) / 2 for name in copies[0]}
            )
    for name, array in ours.items():
        assert array == pytest.approx(net.state_dict()[name].numpy(), abs=1e-6)


def test_rounds_ahead_keep_their_values_and_a_resumed_fit_too(tmp_path):
    """A callback that does not declare itself is told from which round on its values hold."""
    engine = LookaheadEngine()
    plan = {1: [{"lr": 0.0}]}
    whole = trainer_of(engine)
    with pytest.warns(UserWarning, match="holds from round 3 on, .*sets_hyperparameters = True"):
        fit(whole, UndeclaredSetter(plan), Checkpoint(tmp_path, keep=9), num_epochs=6)
    assert [record.get("lr") for record in whole.history] == [None, None, None, 0.0, 0.0, 0.0]
    for path in [*list_checkpoints(tmp_path).values()][1:]:
        resumed = trainer_of()
        fit(resumed, resume=path, num_epochs=6)
        assert_alike(resumed, whole)


def test_the_next_fit_begins_with_what_was_set_last():
    """Also if it was set for a round that was never trained."""
    engine = LookaheadEngine()
    trainer = trainer_of(engine)
    with pytest.warns(UserWarning, match="holds from round"):
        fit(trainer, UndeclaredSetter({0: [{"lr": 0.0}]}), StopAfter(0), num_epochs=6)
    before = trainer.get_parameters()["0.weight"]
    fit(trainer, num_epochs=1)
    assert trainer.get_parameters()["0.weight"] == pytest.approx(before, abs=1e-6)
    assert trainer.history[-1]["lr"] == 0.0
    trainer.set_hyperparameters(lr=0.01)
    fit(trainer, num_epochs=1)
    assert trainer.history[-1]["lr"] == 0.01
    assert not_same_array(trainer.get_parameters()["0.weight"], before)
    trainer.build(mlp(), SGD, "cross_entropy")
    assert trainer.hyperparameters["lr"] == 0.05


def not_same_array(one, other):
    return one.tobytes() != other.tobytes()


def test_values_set_before_the_fit_and_at_its_start_hold_from_the_first_round():
    built = trainer_of(optimizer={"optimizer": "adam", "lr": 0.003})
    before = trainer_of()
    before.set_hyperparameters(lr=0.003)
    at_start = trainer_of()
    start = CallAt("fit_start", lambda trainer: trainer.set_hyperparameters(lr=0.003))
    assert_same_bits(fit(before), fit(built))
    assert_same_bits(fit(at_start, start), fit(trainer_of(optimizer={**ADAM, "lr": 0.003})))


@pytest.mark.parametrize("steps", [1, 4])
def test_the_rates_of_a_schedule_are_multiplied(steps):
    """A function of 0.05 and what the schedule makes of 0.05 / 0.1, exactly half."""
    decay = Schedule(
        partial(LinearLR, start_factor=1.0, end_factor=0.1, total_iters=8), steps=steps
    )
    ours = trainer_of(optimizer=SGD, schedule=decay)
    fit(ours, Setter({0: [{"lr": 0.025, "momentum": 0.5}]}), num_epochs=3)
    built = trainer_of(optimizer=SGD, schedule=decay)
    fit(built, num_epochs=3)
    rates = [record["lr"] for record in built.history]
    halves = [rates[0], rates[1] / 2, rates[2] / 2]
    assert [record["lr"] for record in ours.history] == halves
    assert ours.hyperparameters["lr"] == 0.025


def test_a_schedule_and_set_rates_are_a_plain_loop():
    def decay(epoch):
        return 0.8**epoch

    trainer = trainer_of(workers=1, optimizer=SGD, schedule=decay, loss=Penalized(0.1))
    ours = fit(trainer, Setter({1: [{"lr": 0.02}]}), **ONE_BLOCK)
    factors = [1.0, 1.0, *[0.02 / 0.05] * 3]
    rates = [0.05 * decay(epoch) * factor for epoch, factor in enumerate(factors)]
    plan = {epoch: [{"lr": rate}] for epoch, rate in enumerate(rates[1:])}
    assert_same_bits(ours, plain(partial(torch.optim.SGD, lr=0.05, momentum=0.9), plan, 5))


def test_groups_have_values_of_their_own(raises):
    groups = {**SGD, "groups": {"4": {"lr": 0.5}}}
    trainer = trainer_of(optimizer=groups)
    assert trainer.hyperparameters["lr"] == 0.05
    assert trainer.hyperparameters["lr/4"] == 0.5
    fit(trainer, Setter({0: [{"lr": 0.1, "group": "4"}], 1: [{"lr": 0.2}]}), num_epochs=3)
    rates = [(record["lr"], record["lr/4"]) for record in trainer.history]
    assert rates == [(0.05, 0.5), (0.05, 0.1), (0.2, 0.2)]
    fit(trainer, Setter({3: [{"lr": 0.3, "group": 0}]}), num_epochs=2)
    assert (trainer.history[-1]["lr"], trainer.history[-1]["lr/4"]) == (0.3, 0.2)
    with raises(ValueError, "group='head'"):
        trainer.set_hyperparameters(group="head", lr=0.1)


def test_unfrozen_groups_follow_the_first_one():
    net = awkward_net()
    net[0].requires_grad_(False)
    trainer = trainer_of(net=net)
    setter = Setter({1: [{"lr": 0.02, "weight_decay": 0.1}]})
    fit(trainer, Unfreeze("0", epoch=1, factor=0.5), setter, num_epochs=4)
    assert [record["lr/0"] for record in trainer.history[1:]] == [0.005, 0.01, 0.01]
    groups = trainer.snapshot().workers[0].optimizer["param_groups"]
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [(0.02, 0.1), (0.01, 0.1)]


def test_a_network_with_two_optimizers():
    def step(model, batch, context):
        loss = nn.functional.cross_entropy(model["tail"](model["head"](batch[0])), batch[1])
        context.update("head", loss, retain_graph=True)
        context.update(
            "tail", nn.functional.cross_entropy(model["tail"](model["head"](batch[0])), batch[1])
        )
        return {"loss": loss.detach()}

    trainer = DistributedTrainer(1, engine="serial", seed=0)
    nets = {"head": nn.Linear(6, 4), "tail": nn.Linear(4, 3)}
    trainer.build(nets, {"head": SGD, "tail": ADAM}, training_step=step)
    fit(trainer, Setter({0: [{"lr": 0.0, "group": "head"}, {"betas": (0.5, 0.9)}]}), num_epochs=2)
    groups = trainer.snapshot().workers[0].optimizer["param_groups"]
    assert [group["lr"] for group in groups] == [0.0, 0.01]
    assert groups[1]["betas"] == (0.5, 0.9)
    assert "betas" not in groups[0]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"lr": -0.1}, "lr=-0.1"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"lr": True}, "lr=True"),
        ({"lr": "0.1"}, "lr='0.1'"),
        ({"learning_rate": 0.1}, "learning_rate=0.1"),
        ({"momentum": -1.0}, "momentum"),
        ({"nesterov": True}, "nesterov=True"),
        ({"attributes": {"loss.weigth": 1.0}}, "loss.weigth"),
        ({"attributes": {"loss.weight": float("inf")}}, "loss.weight"),
        ({"group": 3, "lr": 0.1}, "group=3"),
    ],
    ids=str,
)
def test_wrong_values_change_nothing(values, name, raises):
    trainer = trainer_of(optimizer=SGD, loss=Penalized())
    before = trainer.hyperparameters
    with raises(ValueError, name):
        trainer.set_hyperparameters(**values)
    assert trainer.hyperparameters == before


def test_betas_are_as_many_numbers_as_before(raises):
    trainer = trainer_of()
    for wrong in (0.9, (0.9,), (0.9, "0.9")):
        with raises(ValueError, "betas"):
            trainer.set_hyperparameters(betas=wrong)
    with raises(ValueError, "beta"):
        trainer.set_hyperparameters(betas=(0.9, 1.5))
    trainer.set_hyperparameters(betas=[0.8, 0.9])
    assert trainer.hyperparameters["betas"] == (0.8, 0.9)


def test_nothing_to_set_and_no_network_are_errors(raises):
    with raises(TypeError, "set_hyperparameters()"):
        trainer_of().set_hyperparameters()
    with raises(NotBuiltError, "build"):
        DistributedTrainer(1, engine="serial").set_hyperparameters(lr=0.1)


def test_what_a_schedule_decides_is_refused(raises):
    plateau = trainer_of(optimizer=SGD, schedule=ReduceLROnPlateau)
    with raises(ValueError, "ReduceLROnPlateau"):
        plateau.set_hyperparameters(lr=0.1)
    plateau.set_hyperparameters(weight_decay=0.1)
    cycle = partial(OneCycleLR, max_lr=0.1, total_steps=9)
    one_cycle = trainer_of(optimizer=SGD, schedule=cycle)
    with raises(ValueError, "OneCycleLR"):
        one_cycle.set_hyperparameters(lr=0.1)
    with raises(ValueError, "momentum"):
        one_cycle.set_hyperparameters(momentum=0.5)


def test_an_attribute_that_its_object_changes_is_refused(raises):
    trainer = trainer_of(loss=SelfChanging(0.1))
    with raises(ValueError, "loss.weight"):
        fit(trainer, Setter({0: [{"attributes": {"loss.weight": 1.0}}]}))


def test_an_option_that_build_changes_counts_in_a_resumed_fit(tmp_path):
    options = {"num_epochs": 4}
    fit(trainer_of(), Setter({0: [{"lr": 0.003}]}), Checkpoint(tmp_path, keep=9), num_epochs=2)
    resumed = trainer_of(optimizer={**ADAM, "lr": 0.1})
    with pytest.warns(UserWarning, match=r"lr was 0.01, and is 0.1"):
        fit(resumed, resume=tmp_path, **options)
    assert resumed.hyperparameters["lr"] == 0.1


def test_an_attribute_that_is_gone_is_an_error_in_a_resumed_fit(tmp_path, raises):
    setter = Setter({0: [{"attributes": {"loss.weight": 0.5}}]})
    fit(trainer_of(loss=Penalized()), setter, Checkpoint(tmp_path))
    other = trainer_of()
    with raises(ValueError, "loss.weight"):
        other.restore(tmp_path)


def test_a_restored_trainer_goes_on_with_the_values(tmp_path):
    fit(trainer_of(), Setter({0: [{"lr": 0.003}]}), Checkpoint(tmp_path))
    restored = trainer_of()
    restored.restore(tmp_path)
    assert restored.hyperparameters["lr"] == 0.003
    fit(restored, num_epochs=1)
    assert restored.history[-1]["lr"] == 0.003


BETAS = {"betas": (0.8, 0.9), "weight_decay": 0.1}


@pytest.mark.parametrize("saved", [{}, BETAS])
@pytest.mark.parametrize("loaded", ["resume", "restore"])
def test_values_that_a_checkpoint_replaces_are_a_warning(tmp_path, saved, loaded):
    """Also where the checkpoint's fit had set none."""
    before = trainer_of()
    if saved:
        before.set_hyperparameters(**saved)
    fit(before, Checkpoint(tmp_path), num_epochs=1)
    later = trainer_of()
    later.set_hyperparameters(betas=(0.7, 0.9))
    in_checkpoint = before.hyperparameters["betas"]
    load = {
        "restore": partial(later.restore, tmp_path),
        "resume": partial(fit, later, resume=tmp_path, num_epochs=2),
    }
    words = re.escape(f"betas (0.7, 0.9) by {in_checkpoint}")
    with pytest.warns(UserWarning, match=words):
        load[loaded]()
    assert later.hyperparameters == before.hyperparameters


def test_a_program_that_is_run_again_sets_its_values_again(tmp_path):
    """The resumed fit goes on with what a callback has set since, without a warning."""
    plan = {0: [{"lr": 0.003}], 3: [{"lr": 0.002}]}
    whole = trainer_of()
    whole.set_hyperparameters(**BETAS)
    fit(whole, Setter(plan), Checkpoint(tmp_path, keep=9), num_epochs=6)
    for path in [*list_checkpoints(tmp_path).values()][1:]:
        again = trainer_of()
        again.set_hyperparameters(**BETAS)
        fit(again, Setter(plan), resume=path, num_epochs=6)
        assert_alike(again, whole)


def test_a_trainer_that_returns_to_its_checkpoint_is_told_nothing(tmp_path):
    trainer = trainer_of()
    trainer.set_hyperparameters(**BETAS)
    fit(trainer, Setter({0: [{"lr": 0.003}]}), Checkpoint(tmp_path, keep=9), num_epochs=3)
    first, *_ = list_checkpoints(tmp_path).values()
    trainer.restore(first)
    assert trainer.hyperparameters["betas"] == BETAS["betas"]


def test_inference_between_fits_sees_the_attributes_at_once():
    """Also before the first fit, and when a value is set back."""
    trainer = trainer_of(loss=Penalized(0.1))

    def loss():
        return trainer.evaluate(X, Y)["loss"]

    def loss_with(weight):
        trainer.set_hyperparameters(attributes={"loss.weight": weight})
        return loss()

    first = loss()
    assert loss_with(2.0) > first
    assert loss_with(0.1) == first
    fit(trainer, num_epochs=1)
    second = loss()
    assert loss_with(2.0) > second
    assert loss_with(0.1) == second
    trainer.set_hyperparameters(attributes={"loss.weight": 2.0})
    fit(trainer, num_epochs=1)
    third = loss()
    assert loss_with(0.1) < third
    trainer.set_hyperparameters(lr=0.1)
    assert loss() < third
