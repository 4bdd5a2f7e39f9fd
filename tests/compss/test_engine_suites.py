"""Tests of every engine and properties of fits, run inside an application of COMPSs."""

import re

import pytest

from tests.compss.conftest import INSIDE
from tests.helpers.documents import ROOT

# All of tests/trainer/test_trainer.py and tests/training/merging/test_merging.py pass, too, in seven minutes.
CONFORMANCE = ROOT / "tests/engines/test_conformance.py"
TRAINER = ROOT / "tests/trainer/test_trainer.py"
TRAINER_TESTS = (
    "test_every_fit_learns",
    "test_two_fits_are_one_of_all_their_epochs",
    "test_evaluate_and_predict_agree_with_the_model",
    "test_validation_is_the_evaluation_after_each_round",
    "test_a_raising_callback_ends_the_fit_after_its_last_round",
    "test_callbacks_see_the_parameters_of_their_round",
)
DATASETS = ROOT / "tests/trainer/test_dataset_fits.py"
DATASET_TESTS = (
    "test_samples_by_number_are_arrays",
    "test_data_sets_are_evaluated_and_predicted_with",
    "test_a_stream_is_sharded_by_worker",
    "test_data_sets_of_hugging_face_are_arrays",
)


def passed(done):
    assert done.returncode == 0, done.output
    return int(re.findall(r"(\d+) passed", done.output)[-1])


@pytest.mark.timeout(200)
def test_the_tests_for_every_engine_pass(run):
    tests = [CONFORMANCE, INSIDE / "fit_properties.py", *(f"{TRAINER}::{name}" for name in TRAINER_TESTS)]
    assert passed(run("run_tests.py", *tests, seconds=180)) > 50


@pytest.mark.timeout(200)
def test_data_sets_are_trained_on_as_arrays(run):
    assert passed(run("run_tests.py", *(f"{DATASETS}::{name}" for name in DATASET_TESTS), seconds=180)) >= 6


@pytest.mark.parametrize(("file", "names"), [(TRAINER, TRAINER_TESTS), (DATASETS, DATASET_TESTS)])
def test_the_tests_that_are_run_inside_exist(file, names):
    assert set(names) <= set(re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE))
    assert CONFORMANCE.exists()
