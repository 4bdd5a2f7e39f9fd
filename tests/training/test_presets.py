"""Presets of the options that decide how many workers learn as one."""

import pytest
from torch import nn
from torch.nn.functional import mse_loss

from compss_train import Merge
from compss_train.model.optimizers import optimizer_factory
from compss_train.model.training_spec import TrainingSpec
from compss_train.training import PostLocal
from compss_train.training.fit_options import FitOptions
from compss_train.training.merge import NESTEROV
from tests.helpers.models import ADAM, SGD, assert_same_bits, awkward_net, mlp
from tests.helpers.small_fits import X, Y, trainer_of


def chosen(merge, net=mlp, workers=32, samples=60_000, optimizer=SGD, num_epochs=8, **batches):
    merge, spec = Merge.of(merge), TrainingSpec(net=net(), optimizer=optimizer_factory(optimizer), loss=mse_loss)
    if not batches and merge.preset != "auto":
        batches = {"batch_size": 100}
    asked = FitOptions(num_epochs=num_epochs, merge=merge, **batches)
    options = asked.with_preset([samples // 4] * 4, workers, spec)
    return options.merge, options.batch_size


@pytest.mark.parametrize("net", [mlp, awkward_net])
@pytest.mark.parametrize("workers", [2, 7, 8, 32, 64, 1000])
@pytest.mark.parametrize("samples", [100, 60_000, 10**7])
def test_auto_merges_after_a_number_of_samples(net, workers, samples):
    merge, batch = chosen("auto", net, workers, samples)
    assert 16 <= batch <= 100
    between = merge.every * batch * workers
    wanted = min(3_200 if net is awkward_net else 15_000, samples / 4)
    assert merge.every == 1 or abs(between - wanted) <= batch * workers / 2
    if net is awkward_net and workers < 8:
        assert (merge.optimizer_state, merge.outer_optimizer) == ("average", None)
    else:
        assert merge.optimizer_state == ("reset" if net is awkward_net else "average")
        assert merge.outer_optimizer == {**NESTEROV, "momentum": 0.65 if workers == 2 else 0.9}


def test_what_is_given_wins():
    given = {"every": 3, "unit": "blocks", "outer_optimizer": ADAM, "optimizer_state": "keep", "dtype": "int8"}
    for preset in ("auto", "diloco", "slowmo", "post_local"):
        assert chosen(Merge(preset, **given), batch_size=7) == (Merge("synchronous", **given, rule="weighted"), 7)
    assert chosen("auto", batch_size=10)[0].every == round(15_000 / 320)
    merge, batch = chosen("auto", num_batches_per_worker=1500)
    assert batch is None
    assert merge.every == round(15_000 / 320)  # blocks of 15,000 samples in batches of 10


def test_known_choices_of_presets():
    assert chosen("auto", workers=1) == (Merge("synchronous").filled(), 100)  # the plain loop
    for net, outer in ((mlp, NESTEROV), (awkward_net, None)):
        merge, _ = chosen("auto", net, optimizer=ADAM)
        assert (merge.outer_optimizer, merge.optimizer_state) == (outer, "average")
    assert chosen("diloco")[0].every == 500
    assert chosen("slowmo")[0].outer_optimizer["momentum"] == 0.7
    assert chosen("post_local")[0].every == PostLocal(epochs=4, then=16)


@pytest.mark.parametrize("preset", ["auto", "diloco", "slowmo", "post_local"])
def test_a_fit_with_a_preset_is_one_with_its_options(preset):
    batch = {} if preset == "auto" else {"batch_size": 6}
    ours, theirs = trainer_of(), trainer_of()
    ours.fit(X, Y, num_epochs=3, progress=False, shuffle="total", merge=preset, **batch)
    merge, size = chosen(preset, awkward_net, 3, 57, ADAM, num_epochs=3, **batch)
    theirs.fit(X, Y, num_epochs=3, progress=False, shuffle="total", merge=merge, batch_size=size)
    assert_same_bits(ours.get_parameters(), theirs.get_parameters())
    used = ours.configuration["fit"]
    assert used["preset"] == preset
    assert (used["batch_size"], used["merge"]["unit"]) == (size, merge.unit)
    ours.check_fit(X, Y, num_epochs=3, merge=preset, **batch)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"merge": "diloco", "batch_size": None}, "give exactly one of them"),
        ({"merge": "auto", "batch_size": 0}, "batch_size=0: give an integer of at least 1"),
        ({"merge": "auto", "batch_size": "6"}, "batch_size='6': give an integer of at least 1"),
        (
            {"merge": "auto", "batch_size": None, "num_batches_per_worker": 0},
            "num_batches_per_worker=0: give an integer of at least 1",
        ),
        ({"merge": "post_local", "num_epochs": "3"}, "num_epochs='3': give an integer of at least 1"),
    ],
)
def test_wrong_presets(options, error):
    with pytest.raises(ValueError, match=error):
        trainer_of().fit(X, Y, **{"num_epochs": 1, "batch_size": 6, **options})


def test_batch_norm_anywhere_in_the_network_counts():
    inner = nn.Sequential(nn.Linear(3, 3), nn.ModuleDict({"norm": nn.BatchNorm2d(3)}))
    assert chosen("auto", lambda: inner, workers=2)[0] == chosen("auto", awkward_net, workers=2)[0]
    assert chosen("auto", lambda: inner, workers=2)[0] != chosen("auto", workers=2)[0]
