"""The watchdog ends its process: in children of one process that has imported the package."""

import json
import subprocess
import sys

import pytest

from compss_train.engines import calls
from tests.helpers.processes import is_running
from tests.helpers.waiting import LIMIT, wait_until

CHILD = """
import ctypes, json, os, pickle, subprocess, sys, threading
from types import SimpleNamespace
from compss_train.online import simulation_task as watchdog
from tests.helpers.waiting import hang, pause

now = [0.0]  # passes as each says, however slow the machine is
watchdog.time = SimpleNamespace(monotonic=lambda: now[0])
watchdog._TICK, watchdog._GRACE = 0.02, 1.5
hold = ctypes.PyDLL(None).usleep  # keeps other threads of Python from running


class Stream:
    def __init__(self):
        self.ended = threading.Event()

    def update(self, timeout=0.0):
        pass

    def notify(self, message):
        tell(vars(message))


def tell(value):
    os.write(1, (json.dumps([NAME, value]) + "\\n").encode())


def hangs(stream):
    with watchdog.Watchdog(stream, 100) as dog, dog.computing():
        now[0] += 101
        hang()

def hangs_deep(stream):
    with watchdog.Watchdog(stream, 0.2) as dog, dog.computing():
        hold(100_000_000)

def continues_after_the_end(stream):
    with watchdog.Watchdog(stream, None) as dog, dog.computing():
        stream.ended.set()
        hang()

def waits_after_the_end(stream):
    with watchdog.Watchdog(stream, 100) as dog:
        stream.ended.set()
        hang()

def ends_after_the_end(stream):
    watchdog._GRACE = 100
    with watchdog.Watchdog(stream, None) as dog, dog.computing():
        stream.ended.set()
        pause(0.1)

def takes_less_than_the_limit(stream):
    with watchdog.Watchdog(stream, 100) as dog:
        for _ in range(3):
            with dog.computing():
                now[0] += 60
                pause(0.1)

class Imported:
    def __reduce__(self):
        return imported, ()

def imported():
    now[0] += 200
    pause(0.1)
    return lambda number: []

def imports_for_longer_than_the_limit(stream):
    with watchdog.Watchdog(stream, 100) as dog:
        watchdog.send_all(
            pickle.dumps(Imported()), pickle.dumps(0), stream, watchdog=dog, steps=None
        )

def is_closed(stream):
    with watchdog.Watchdog(stream, 0.1) as dog:
        pass
    stream.ended.set()
    hold(600_000)

def has_programs(stream):
    solver = "sleep 60 & echo $!; exec 1>&-; (sleep 60; true) & wait"
    command = ["sh", "-c", solver]
    programs = [
        subprocess.Popen(command, start_new_session=new, stdout=subprocess.PIPE)
        for new in (False, True)
    ]
    sleepers = [int(program.stdout.readline()) for program in programs]
    tell([*sleepers, *(program.pid for program in programs)])
    hangs(stream)

children = {}
for NAME in sys.argv[1:]:
    if (child := os.fork()) == 0:
        globals()[NAME](Stream())
        os._exit(0)
    children[child] = NAME
while children:
    child, status = os.wait()
    line = json.dumps([children.pop(child), os.waitstatus_to_exitcode(status)])
    os.write(1, f"{line}\\n".encode())
"""

EXITS = {
    "hangs": 1,
    "hangs_deep": 1,
    "continues_after_the_end": calls.LEFT,
    "waits_after_the_end": calls.LEFT,
    "ends_after_the_end": 0,
    "takes_less_than_the_limit": 0,
    "imports_for_longer_than_the_limit": 0,
    "is_closed": 0,
    "has_programs": 1,
}


@pytest.fixture(scope="module")
def children():
    """Run all at the same time; give each one's messages, its exit status last, and standard
    error.
    """
    run = subprocess.run(
        [sys.executable, "-c", CHILD, *EXITS], capture_output=True, text=True, timeout=LIMIT
    )
    assert run.returncode == 0, run.stderr
    said = {name: [] for name in EXITS}
    for line in run.stdout.splitlines():
        name, what = json.loads(line)
        said[name].append(what)
    return said, run.stderr


@pytest.mark.parametrize("name", EXITS)
def test_the_process_of_a_hanging_or_unneeded_simulation_ends(children, name):
    assert children[0][name][-1] == EXITS[name]
    assert len(children[0][name]) == {"hangs": 2, "has_programs": 3}.get(name, 1)


def test_the_stack_of_a_hanging_simulation_is_reported(children):
    report = children[0]["hangs"][0]
    assert report["timeout"] == 100
    assert "in hangs" in report["stack"]
    assert "computing" not in report["stack"].splitlines()[-1]


def test_descendants_are_killed_with_the_process(children):
    programs = children[0]["has_programs"][0]
    assert len(set(programs)) == 4
    wait_until(lambda: not any(is_running(program) for program in programs))


def test_a_solver_that_holds_the_interpreter_lock_is_shown_on_standard_error(children):
    assert "in hangs_deep" in children[1]
    assert "Timeout" in children[1]
