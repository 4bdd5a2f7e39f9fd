"""The check of ``make lint`` finds waits that hope.

It lets be what waits for an event, or is under test.
"""

import pytest

from tests.lint_waits import offences


@pytest.mark.parametrize(
    "line",
    [
        "time.sleep(1)",
        "from time import sleep as wait",
        "PROGRAM = 'import time; time.sleep(60)'",
        "threading.Event().wait(0.1)",
        "def test_it():\n    gate, other = Event(), 1\n    gate.wait(0.1)",
        "def test_it():\n    pause(0.1)",
        "@pytest.fixture(scope='module')\ndef it():\n    hang()",
        "def test_it():\n    wait_until(pid.exists)\n    int(pid.read_text())",
        "def test_it():\n    wait_until((at / 'pid').exists)\n    (at / 'pid').read_text()",
    ],
)
def test_a_wait_that_hopes_is_found(line):
    assert len([*offences(line)]) == 1


@pytest.mark.parametrize(
    "line",
    [
        "threading.Event().wait()",
        "gate = Event()\nassert gate.wait(10)",
        "process.wait(30)",
        "def test_it():\n    def simulate():\n        pause(0.1)",
        "class Net:\n    def forward(self):\n        hang()",
        "def test_it():\n    wait_until(flag.exists)\n    int(pid.read_text())",
        "def test_it():\n    int(text_of(pid))\n    pid.read_text()",
    ],
)
def test_a_wait_for_an_event_and_what_is_under_test_are_let_be(line):
    assert not [*offences(line)]
