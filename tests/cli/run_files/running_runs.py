"""Folders of runs whose rounds are written one by one, as another process does while it trains."""

import json

import pytest

from compss_train.cli.run_files import live_report
from compss_train.cli.run_files.run_folder import RUNNING, RunFolder
from compss_train.reports.history import line_of
from tests.helpers.histories import steady_run

CONFIGURATION = {"trainer": {"num_workers": 2}, "build": {"net": "Net()"}}
ROUNDS = steady_run(6, 2)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(live_report, "MAX_SHARE", float("inf"))


@pytest.fixture
def folder(tmp_path):
    """A run that this process has started and that has no round yet."""
    folder = RunFolder(tmp_path)
    folder.configuration.write_text(json.dumps(CONFIGURATION))
    folder.history.touch()
    folder.write_state(RUNNING)
    return folder


def write_rounds(folder, number, then=""):
    """Append rounds to the history, and then the beginning of a line."""
    start = len(folder.history.read_bytes().splitlines())
    with folder.history.open("a") as file:
        file.write("".join(map(line_of, ROUNDS[start : start + number])) + then)
