"""A program with a long task for each of two nodes, which notes that it begins: it must not run
again.
"""

import sys
from pathlib import Path

from compss_train.engines import RayEngine
from tests.helpers.waiting import pause


def wait(notes, number, seconds):
    with Path(notes).open("a") as file:
        file.write(f"{number}\n")
    pause(seconds)
    return number


if __name__ == "__main__":
    with RayEngine() as engine:
        print(
            engine.fetch(
                [engine.submit(wait, sys.argv[1], number, float(sys.argv[2])) for number in (1, 2)]
            )
        )
