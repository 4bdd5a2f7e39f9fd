"""An application that COMPSs gives up while the coordinator waits: a task that is not ours fails for good."""

import sys

from pycompss.api.api import compss_wait_on

from compss_train.engines import CompssEngine
from tests.compss.inside import making
from tests.engines import tasks


def main():
    with CompssEngine() as engine:
        if engine.fetch([engine.submit(tasks.add, 1, 2)]) != [3]:
            sys.exit("no sum")
        compss_wait_on(making.broken())


if __name__ == "__main__":
    main()
