"""Runs tasks at the same time: each waits for all others. The arguments are a folder and the number of tasks."""

import os
import sys
import time
from pathlib import Path

from compss_train.engines import CompssEngine


def meet(folder, number, total):
    (folder / str(number)).touch()
    end = time.monotonic() + 15
    while len(os.listdir(folder)) < total and time.monotonic() < end:
        time.sleep(0.01)
    return len(os.listdir(folder))


if __name__ == "__main__":
    folder, total = Path(sys.argv[1]), int(sys.argv[2])
    with CompssEngine() as engine:
        refs = [engine.submit(meet, folder, number, total) for number in range(total)]
        print("met", engine.fetch(refs, small=True))
