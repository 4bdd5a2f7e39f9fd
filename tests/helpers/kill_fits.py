"""Kill a program that trains with checkpoints, start it again, and so on until it ends; then look
at what it made.

The first time, and then every so many times, it trains on so many processes, and else on the serial
engine. It is killed so many times, each time after up to so many seconds, every third time with
SIGTERM.
"""

import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from compss_train import LocalEngine, SerialEngine
from compss_train.callbacks import Checkpoint, EarlyStopping
from compss_train.training.checkpoints import list_checkpoints, read_checkpoint
from tests.helpers.callbacks import CallAt
from tests.helpers.models import MODES
from tests.helpers.processes import is_running, leftovers
from tests.helpers.small_fits import X, Y, contents, fit, trainer_of
from tests.helpers.waiting import wait_until
from tests.training.checkpoints.trees import assert_same

EACH = 3
"""Rounds after which a program that is to be killed goes no further."""
OPTIONS = {"validation_data": (X[:20], Y[:20]), **MODES[3]}


def program(folder: Path, processes: int, epochs: int, last: int | None) -> None:
    """Train, to the end or up to a round after which it waits for its own."""
    with LocalEngine(processes) if processes else SerialEngine() as engine:
        trainer = trainer_of(engine, workers=2)
        callbacks = [
            Checkpoint(folder, keep=3, best="val_loss"),
            EarlyStopping(patience=4 * epochs),
        ]
        if last is not None:
            callbacks.append(
                CallAt("round_end", lambda _: wait_until(lambda: trainer.stopping, 600), last)
            )
        fit(trainer, *callbacks, resume=True, num_epochs=epochs, **OPTIONS)


def started(folder: Path, processes: int, epochs: int, last: int | None = None) -> int:
    if child := os.fork():
        return child
    try:
        program(folder, processes, epochs, last)
    except SystemExit as error:
        os._exit(error.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def check(folder: Path) -> None:
    """Whatever is called a checkpoint is a good one."""
    for number, path in list_checkpoints(folder).items():
        assert len(read_checkpoint(path)["history"]) == number + 1


def has_ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill(child: int, number: signal.Signals, seconds: float, goes_on: Callable[[], bool]) -> None:
    """Kill a program so many seconds after it goes on; its processes and files go, too."""
    processes: list[int] = []

    def strike() -> None:
        processes.extend(each.pid for each in psutil.Process(child).children(recursive=True))
        os.kill(child, number)

    wait_until(lambda: goes_on() or has_ended(child), every=0.0005)
    timer = threading.Timer(seconds, strike)
    timer.start()
    # Its number is not given to another process yet.
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    timer.cancel()
    timer.join()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # Before its fit it is just killed.
    assert code in ((143, -number) if number == signal.SIGTERM else (-number,))
    wait_until(lambda: not any(map(is_running, processes)) and not leftovers(child))


def progress(folder: Path) -> int:
    return max(list_checkpoints(folder), default=-1)


def kill_fits(
    folder: Path, processes: int, every: int, kills: int, seconds: float
) -> tuple[int, int]:
    """Return how often it was killed, and after how many different rounds; each program is a fork
    of this one.
    """
    draw = random.Random()
    reached = [-1]
    epochs = EACH * kills + 2
    killed = folder / "killed"
    whole = folder / "whole"
    while len(reached) <= kills:
        before = reached[-1]
        child = started(
            killed, processes * (len(reached) % every == 1 % every), epochs, before + EACH
        )
        # At any time of its life: before its first round of its own, too, but then not twice in a
        # row.
        anywhen = len(reached) > 1 and reached[-2] != before and draw.random() < 0.3
        number = signal.SIGKILL if len(reached) % 3 else signal.SIGTERM
        kill(child, number, draw.uniform(0, seconds), lambda: anywhen or progress(killed) > before)  # noqa: B023
        check(killed)
        reached.append(progress(killed))
    for left in (started(killed, processes * (every == 1), epochs), started(whole, 0, epochs)):
        assert os.waitpid(left, 0)[1] == 0
    assert_same(contents(killed), contents(whole))
    assert not [path.name for path in killed.iterdir() if path.name.startswith(".")]
    return len(reached) - 1, len(set(reached)) - 1
