"""Kinds of fits have the bits of the serial engine, and fits resume on other engines."""

import pytest

from compss_train import SerialEngine
from compss_train.callbacks import Checkpoint
from tests.helpers.callbacks import InterruptAt
from tests.helpers.models import classification
from tests.helpers.small_fits import assert_alike, fit, trainer_of
from tests.ray.test_faults import wide
from tests.same_bits.comparison import differences
from tests.same_bits.fitting import Place
from tests.same_bits.program import KINDS

SOME = (
    *("total shuffle", "several workers a task, total shuffle", "commutative", "parameter server"),
    *("merged in int8, outer optimizer", "files, partial shuffle"),
)
OTHERS = (
    *("blocks shuffled", "partial shuffle, two pools", "optimizers averaged", "FIRO, batches"),
    "transform that draws",
    *(
        "no shuffle",
        "one worker",
        "several workers a task",
        "merged every two batches",
        ("outer optimizer"),
    ),
    *("averaged parameters", "a data set", "sequences", "sample weights", "two optimizers"),
)


@pytest.mark.parametrize(
    "kind", [*SOME, *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHERS)]
)
def test_kinds_of_fits_have_the_bits_of_the_serial_engine(kind, shared_ray, tmp_path):
    results = []
    for number, engine in enumerate((SerialEngine(), shared_ray)):
        (folder := tmp_path / str(number)).mkdir()
        results.append({kind: KINDS[kind](Place(engine, folder, in_order=False))})
    assert list(differences(*results)) == []


def test_changes_in_place_reach_neither_blocks_nor_parameters_in_shared_memory(shared_ray):
    """The transform travels by value: nodes would import all that these tests import."""
    wide_data = [array.repeat(160, axis=0) for array in classification(samples=57)]
    results = []
    for engine in ("serial", shared_ray):
        trainer = trainer_of(engine, 2, net=wide, transform=lambda x: x.mul_(0.5))
        fit(trainer, data=wide_data, shuffle=None, shuffle_block_data=False, batch_size=1000)
        results.append(trainer)
    assert_alike(*results)


@pytest.mark.parametrize("order", [("ray", "serial"), ("serial", "ray")])
def test_an_interrupted_fit_resumes_on_another_engine(order, shared_ray, tmp_path):
    first, second = (shared_ray if name == "ray" else SerialEngine() for name in order)
    with pytest.raises(KeyboardInterrupt):
        fit(trainer_of(first), Checkpoint(tmp_path), InterruptAt(1), num_epochs=4)
    resumed = trainer_of(second)
    whole = trainer_of()
    fit(resumed, resume=tmp_path, num_epochs=4)
    fit(whole, num_epochs=4)
    assert_alike(resumed, whole)
