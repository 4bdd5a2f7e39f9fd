"""A long run of many small tasks leaves nothing behind, in the coordinator and on the workers.

COMPSs itself keeps some kilobytes of records a task in its JVM, and two empty log files a task on the worker until
the end; docs/compss.md has figures.
"""

import json

import pytest


def sizes(run, tmp_path, workers, rounds, seconds):
    done = run("growth.py", tmp_path / "sizes.json", workers, rounds, seconds=seconds)
    assert done.returncode == 0, done.output
    measured = json.loads((tmp_path / "sizes.json").read_text())
    assert len(measured) == rounds
    return measured


def check(measured, first, last, workers):
    before, after = measured[first], measured[last]
    assert abs(after["tracked"] - before["tracked"]) <= 5  # objects that PyCOMPSs keeps in the coordinator
    assert abs(after["files here"] - before["files here"]) <= 5
    # COMPSs keeps the one value a round that comes here; a leak of ours would be at least one a worker and round.
    assert after["values on workers"] - before["values on workers"] <= (last - first) + workers / 2, measured


def test_nothing_is_left_behind(run, tmp_path):
    check(sizes(run, tmp_path, 16, 30, seconds=100), 4, 28, workers=16)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_64_workers_leave_nothing_behind_in_100_rounds(run, tmp_path):
    check(sizes(run, tmp_path, 64, 100, seconds=580), 10, 98, workers=64)
