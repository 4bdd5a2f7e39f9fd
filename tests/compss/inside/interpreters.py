"""Prints the interpreters of this program and of tasks."""

import sys

from compss_train.engines import CompssEngine


def interpreter():
    return sys.executable


if __name__ == "__main__":
    with CompssEngine() as engine:
        of_tasks = engine.fetch([engine.submit(interpreter) for _ in range(4)])
        print("interpreters", sorted({sys.executable, *of_tasks}))
