"""The apps under COMPSs, started like by users."""

import re

import pytest

from tests.apps.conftest import images  # noqa: F401  (a fixture)
from tests.helpers.documents import ROOT


def accuracy(done):
    assert done.returncode == 0, done.output
    return float(re.search(r"test accuracy ([\d.]+)%", done.output)[1])


def test_digits_trains_by_commutative_workers(run):
    done = run(ROOT / "apps" / "digits.py", "--workers", 2, "--epochs", 10, "--merge", "commutative")
    assert accuracy(done) > 90


@pytest.mark.usefixtures("images")
def test_fashion_mnist_trains_on_images(run, tmp_path):
    done = run(ROOT / "apps" / "fashion_mnist.py", "--epochs", 2, "--batch-size", 20, "--data", tmp_path / "images")
    assert accuracy(done) > 90
