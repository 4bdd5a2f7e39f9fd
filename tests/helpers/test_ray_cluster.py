"""Nodes of Ray that are started by hand."""

import os
import sys

import pytest

pytest.importorskip("ray")

from tests.helpers.ray_cluster import STARTS, started_node

START = """
import sys
with open(sys.argv[1], "a+") as starts:
    starts.write("start\\n")
    starts.seek(0)
    number = len(starts.readlines())
sys.exit(0 if number == int(sys.argv[2]) else sys.argv[3])
"""


@pytest.fixture
def log(tmp_path):
    """A file with a line for each start."""
    return tmp_path / "starts"


def node(log, number, message):
    """A node whose start fails with a message, unless it is the one with this number."""
    command = [sys.executable, "-c", START, str(log), str(number), message]
    return started_node(command, dict(os.environ))


def test_a_node_that_starts_too_slowly_is_started_again(log):
    with node(log, STARTS, "The current node timed out during startup"):
        assert len(log.read_text().split()) == STARTS


@pytest.mark.parametrize(
    ("message", "starts"), [("it timed out", STARTS), ("there is no such option", 1)]
)
def test_a_node_that_does_not_start_is_an_error(log, message, starts):
    with pytest.raises(AssertionError, match=message), node(log, 100, message):
        pass
    assert len(log.read_text().split()) == starts
