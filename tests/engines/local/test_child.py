"""Tests of child processes that do the work of another engine's tasks."""

import numpy as np
import pytest

from compss_train.engines import local
from tests.engines import tasks


@pytest.mark.parametrize("timeout", [None, 20.0])
@pytest.mark.parametrize("gpu", [False, True])
def test_a_child_runs_functions_and_is_replaced(timeout, gpu, forked_processes, tmp_path):
    ones = np.ones(50_000)
    assert local.run_in_child(tasks.total, timeout, gpu, [ones, ones]).sum() == 100_000
    assert local.run_in_child(tasks.die_once, timeout, gpu, tmp_path / "flag", 7) == 7
    with pytest.raises(KeyError, match="broken"):
        local.run_in_child(tasks.fail, timeout, gpu, "broken")
    local._kept_child.cache_clear()
