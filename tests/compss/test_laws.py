"""The tests that run on every engine, and the laws of the core, in applications of COMPSs."""

import re

import pytest

from tests.compss.conftest import INSIDE
from tests.helpers.documents import ROOT

# All of tests/trainer/test_trainer.py and tests/training/merging/test_merging.py pass, too, in seven minutes.
TRAINER = (
    "test_every_fit_learns",
    "test_a_second_fit_goes_on_as_if_there_had_been_one",
    "test_evaluate_and_predict_agree_with_the_model",
    "test_validation_is_the_evaluation_after_each_round",
    "test_a_callback_that_raises_ends_the_fit_and_keeps_the_last_complete_round",
    "test_callbacks_see_the_parameters_of_their_round",
)


def passed(done):
    assert done.returncode == 0, done.output
    return int(re.findall(r"(\d+) passed", done.output)[-1])


@pytest.mark.timeout(200)
def test_the_laws_hold_and_the_tests_for_every_engine_pass(run):
    trainer = ROOT / "tests" / "trainer" / "test_trainer.py"
    tests = [ROOT / "tests/engines/test_conformance.py", INSIDE / "laws.py", *(f"{trainer}::{n}" for n in TRAINER)]
    assert passed(run("run_tests.py", *tests, seconds=180)) > 50
