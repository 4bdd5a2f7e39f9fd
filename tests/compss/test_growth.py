"""Many small tasks do not accumulate memory or files, in the coordinator and on the workers.

COMPSs itself keeps some kilobytes per task in its JVM, and two empty log files per task on the worker until the
end; see docs/compss.md.
"""

import json
from statistics import median

import pytest


def sizes(run, tmp_path, workers, rounds, seconds):
    done = run("growth.py", tmp_path / "sizes.json", workers, rounds, seconds=seconds)
    assert done.returncode == 0, done.output
    measured = json.loads((tmp_path / "sizes.json").read_text())
    assert len(measured) == rounds
    return measured


def check(measured, slack):
    """Compare medians of early and late rounds, since the values vary."""

    def typical(name, rounds):
        return median(entry[name] for entry in rounds)

    early, late = measured[4:12], measured[-9:-1]
    rounds = len(measured) - 9 - 4
    assert abs(typical("tracked", late) - typical("tracked", early)) <= 3  # objects that PyCOMPSs keeps here
    assert abs(typical("files here", late) - typical("files here", early)) <= 3
    # COMPSs keeps one value per round, which the coordinator has read; a leak would at least double that.
    assert typical("values on workers", late) - typical("values on workers", early) <= rounds + slack


def test_nothing_is_left_behind(run, tmp_path):
    check(sizes(run, tmp_path, 16, 30, seconds=100), slack=12)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_64_workers_leave_nothing_behind_in_100_rounds(run, tmp_path):
    check(sizes(run, tmp_path, 64, 100, seconds=580), slack=60)
