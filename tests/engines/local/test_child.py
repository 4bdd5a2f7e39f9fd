"""Tests of child processes that do the work of another engine's tasks."""

import numpy as np
import pytest
import torch

from compss_train.engines.local import child
from tests.engines import tasks


@pytest.fixture
def kept(shared_local, monkeypatch):
    monkeypatch.setattr(child, "child_engine", lambda threads, preload: shared_local)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


def test_results_are_those_of_the_function_and_a_child_that_dies_is_replaced(kept, tmp_path):
    ones = np.ones(50_000)
    assert child.run_watched(tasks.total, 20.0, [ones, ones]).sum() == 100_000
    assert child.run_watched(tasks.die_once, 20.0, tmp_path / "flag", 7) == 7
    with pytest.raises(KeyError, match="broken"):
        child.run_watched(tasks.fail, 20.0, "broken")
