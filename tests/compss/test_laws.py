"""The tests that run on every engine, and the laws of the core, in applications of COMPSs."""

import re

import pytest

from tests.compss.conftest import INSIDE, ROOT

FITS = "every_fit_learns or second_fit or evaluate or predict or validation"


def passed(done):
    assert done.returncode == 0, done.output
    return int(re.findall(r"(\d+) passed", done.output)[-1])


@pytest.mark.timeout(200)
def test_the_conformance_suite_and_the_laws_hold(run):
    tests = [ROOT / "tests/engines/test_conformance.py", INSIDE / "laws.py"]
    done = run("run_tests.py", *tests, seconds=180)
    assert passed(done) > 40


@pytest.mark.timeout(200)
def test_the_trainers_tests_pass(run):
    done = run("run_tests.py", "-k", FITS.replace(" or ", "_or_"), ROOT / "tests/test_trainer.py", seconds=180)
    assert passed(done) > 10
