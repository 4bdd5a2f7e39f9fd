"""Tests of heartbeats: what a process reports is what its engine reads."""

import os

from compss_train.engines import liveness
from compss_train.engines.liveness import Heartbeat


def new_heartbeat(folder):
    (folder / "beats").write_bytes(bytes(liveness.SIZE))
    return Heartbeat(str(folder / "beats"))


def test_another_holder_of_the_file_reads_what_was_reported(tmp_path):
    ours = new_heartbeat(tmp_path)
    theirs = Heartbeat(ours.path)
    theirs.describe("round 3 on worker 1")
    theirs.beat(20)
    theirs.beat(7)
    assert (ours.beats, ours.samples, ours.doing) == (3, 27, "round 3 on worker 1")
    theirs.describe("é" * 500)
    assert ours.doing.startswith("é" * 100)
    assert os.path.getsize(ours.path) == 256


def test_tasks_report_to_the_heartbeat_of_their_process_only(tmp_path):
    liveness.beat(5)
    liveness.describe("nobody listens")
    own = new_heartbeat(tmp_path)
    with liveness.reporting_to(own):
        liveness.beat(5)
    liveness.beat(5)
    assert (own.beats, own.samples) == (1, 5)
