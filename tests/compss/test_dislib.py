"""dislib's tests of distributed training pass after one import line is changed.

They are not part of this project: ``DISLIB_CHECKOUT`` is the path of a checkout of dislib.
"""

import os
from pathlib import Path

import pytest

THEIRS = "from dislib.pytorch.encapsulated_functions_distributed import"
OURS = "from compss_train.integrations.dislib import"


@pytest.mark.timeout(200)
def test_dislibs_own_tests_pass(run, tmp_path, monkeypatch):
    if (checkout := os.environ.get("DISLIB_CHECKOUT")) is None:
        pytest.skip("needs a checkout of dislib; set DISLIB_CHECKOUT to its path")
    source = Path(checkout, "tests", "test_distributed_pytorch.py").read_text()
    assert source.count(THEIRS) == 1
    changed = tmp_path / "test_distributed_pytorch.py"
    changed.write_text(source.replace(THEIRS, OURS))
    monkeypatch.setenv("ComputingUnits", "1")
    monkeypatch.setenv("ComputingUnitsGPUs", "0")
    done = run(changed, seconds=180, flags=(f"--pythonpath={checkout}",))
    assert done.returncode == 0, done.output
    assert "Ran 10 tests" in done.output
