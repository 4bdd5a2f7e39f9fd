"""Presets of the options that decide how many workers learn as one."""

import numpy as np
import pytest
from torch import nn

from compss_train.model.optimizers import optimizer_factory
from compss_train.training import PostLocal
from compss_train.training.presets import NESTEROV, Situation, with_preset
from tests.helpers.models import ADAM, SGD, assert_same_bits, awkward_net, mlp
from tests.helpers.small_fits import X, Y, trainer_of

CHOSEN = ("batch_size", "merge_every", "merge_unit", "outer_optimizer", "optimizer_state")


def situation(workers=32, samples=60_000, net=mlp, optimizer=SGD):
    return Situation.of(workers, [samples // 4] * 4, net(), optimizer_factory(optimizer))


def chosen(preset, net=mlp, workers=32, samples=60_000, **given):
    return with_preset(preset, {"num_epochs": 8, **given}, lambda: situation(workers, samples, net))


@pytest.mark.parametrize("net", [mlp, awkward_net])
@pytest.mark.parametrize("workers", [2, 7, 8, 32, 64, 1000])
@pytest.mark.parametrize("samples", [100, 60_000, 10**7])
def test_auto_merges_after_a_number_of_samples(net, workers, samples):
    options = chosen("auto", net, workers, samples)
    assert 16 <= options["batch_size"] <= 100
    between = options["merge_every"] * options["batch_size"] * workers
    wanted = min(3_200 if net is awkward_net else 15_000, samples / 4)
    assert options["merge_every"] == 1 or abs(between - wanted) <= options["batch_size"] * workers / 2
    if net is awkward_net and workers < 8:
        assert (options["optimizer_state"], options["outer_optimizer"]) == ("average", None)
    else:
        assert options["optimizer_state"] == ("reset" if net is awkward_net else "average")
        assert options["outer_optimizer"] == {**NESTEROV, "momentum": 0.65 if workers == 2 else 0.9}


def test_auto_with_adam():
    def of(net):
        return with_preset("auto", {"num_epochs": 8}, lambda: situation(net=net, optimizer=ADAM))

    assert (of(mlp)["outer_optimizer"], of(mlp)["optimizer_state"]) == (NESTEROV, "average")
    assert (of(awkward_net)["outer_optimizer"], of(awkward_net)["optimizer_state"]) == (None, "average")


def test_auto_for_one_worker_is_the_plain_loop():
    assert chosen("auto", workers=1) == {"num_epochs": 8, "batch_size": 100}


def test_what_is_given_wins():
    given = {
        "batch_size": 7,
        "merge_every": 3,
        "merge_unit": "blocks",
        "outer_optimizer": ADAM,
        "optimizer_state": "keep",
    }
    for preset in ("auto", "diloco", "slowmo", "post_local"):
        assert chosen(preset, **given) == {"num_epochs": 8, **given}
    assert chosen("auto", batch_size=10)["merge_every"] == round(15_000 / 320)
    by_number = chosen("auto", num_batches_per_worker=1500)
    assert "batch_size" not in by_number
    assert by_number["merge_every"] == round(15_000 / 320)  # blocks of 15,000 samples in batches of 10


def test_published_presets():
    assert chosen("diloco")["merge_every"] == 500
    assert chosen("slowmo")["outer_optimizer"]["momentum"] == 0.7
    assert chosen("post_local")["merge_every"] == PostLocal(epochs=4, then=16)


@pytest.mark.parametrize("preset", ["auto", "diloco", "slowmo", "post_local"])
def test_a_fit_with_a_preset_is_one_with_its_options(preset):
    batch = {} if preset == "auto" else {"batch_size": 6}
    ours, theirs = trainer_of(), trainer_of()
    ours.fit(X, Y, num_epochs=3, preset=preset, progress=False, shuffle="total", **batch)
    options = with_preset(preset, {"num_epochs": 3, **batch}, lambda: situation(3, 57, awkward_net, ADAM))
    theirs.fit(X, Y, progress=False, shuffle="total", **options)
    assert_same_bits(ours.get_parameters(), theirs.get_parameters())
    used = ours.configuration["fit"]
    assert used["preset"] == preset
    assert {name: used[name] for name in ("batch_size", "merge_unit")} == {
        name: options[name] for name in ("batch_size", "merge_unit")
    }
    ours.check_fit(X, Y, num_epochs=3, preset=preset, **batch)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"preset": "Auto"}, "preset='Auto': choose one of 'auto', 'diloco'"),
        ({"preset": "auto", "merge": "commutative"}, "preset='auto' belongs to merge='synchronous'"),
        ({"preset": "auto", "merge_every": 2}, "chooses merge_every= and merge_unit= together"),
        ({"preset": "diloco", "batch_size": None}, "give exactly one of them"),
        ({"preset": "auto", "batch_size": 0}, "batch_size=0: give an integer of at least 1"),
        ({"preset": "auto", "batch_size": "6"}, "batch_size='6': give an integer of at least 1"),
        (
            {"preset": "auto", "batch_size": None, "num_batches_per_worker": 0},
            "num_batches_per_worker=0: give an integer of at least 1",
        ),
        ({"preset": "post_local", "num_epochs": "3"}, "num_epochs='3': give an integer of at least 1"),
    ],
)
def test_wrong_presets(options, error):
    with pytest.raises(ValueError, match=error):
        trainer_of().fit(X, Y, **{"num_epochs": 1, "batch_size": 6, **options})


def test_batch_norm_anywhere_in_the_network_counts():
    inner = nn.Sequential(nn.Linear(3, 3), nn.ModuleDict({"norm": nn.BatchNorm2d(3)}))
    assert Situation.of(2, [10], inner, optimizer_factory(SGD)).batch_norm
    assert not situation().batch_norm
    assert situation(optimizer=ADAM).adaptive
    assert not situation().adaptive
    assert np.isclose(situation().samples, 60_000)
