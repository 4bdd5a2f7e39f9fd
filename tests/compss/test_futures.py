"""Training on blocks that are futures of other tasks, as in dislib's tensors."""

import json

import pytest


@pytest.mark.timeout(150)
def test_all_fits_train_on_blocks_that_are_futures(run, tmp_path):
    done = run("futures.py", tmp_path / "result.json", seconds=140)
    assert done.returncode == 0, done.output
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["known"] == {"shape": [4, 1], "sizes": [50] * 4, "dtype": "float32"}
    assert max(result["read by from_dislib"]) < 1000  # no block was transferred to get its shape
    for fit, difference in result["differences"].items():
        # Commutative updates are added in the order of arrival, which varies.
        assert difference == 0 if "_asynchronous" not in fit else difference < 0.1, fit
    assert result["collected"]
