"""Runs tasks at the same time: each waits for all others. The arguments are a folder and the number
of tasks.
"""

import os
import sys
from pathlib import Path

from compss_train.engines import CompssEngine
from tests.helpers.waiting import wait_until


def meet(folder, number, total):
    (folder / str(number)).touch()
    wait_until(lambda: len(os.listdir(folder)) == total, 15)
    return total


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    total = int(sys.argv[2])
    with CompssEngine() as engine:
        refs = [engine.submit(meet, folder, number, total) for number in range(total)]
        print("met", engine.fetch(refs, small=True))
