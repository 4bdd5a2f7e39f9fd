"""A process ends with its parent, even while it imports what its arguments need."""

import os
import pickle
import subprocess
import sys

import pytest

from tests.helpers.waiting import LIMIT, hang

NO_PROCESS = 2**30
"""A number of no process: such a parent has ended."""
CALL = "from compss_train.engines.parent_watch import call_with_parent as call; "


class Hangs:
    """Hangs where it is unpickled, as an import of torch may for long."""

    def __reduce__(self):
        return hang, ()


def answered(watch):
    print(watch.parent_runs)
    watch.stop()


@pytest.mark.parametrize(
    ("parent", "function", "status", "output"),
    [(NO_PROCESS, Hangs(), 1, ""), (os.getpid(), answered, 0, "True\n")],
    ids=["ended", "runs"],
)
def test_a_process_ends_with_its_parent_while_it_imports(parent, function, status, output):
    pickled = pickle.dumps((function, ()))
    command = [sys.executable, "-c", f"{CALL}call({parent}, {pickled!r})"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stdout) == (status, output), done.stderr
