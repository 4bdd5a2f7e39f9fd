"""An application that COMPSs aborts while the coordinator waits: a task of another library always
fails.
"""

import sys

from pycompss.api.api import compss_wait_on

from compss_train.engines import CompssEngine
from tests.compss.inside import block_tasks
from tests.engines import tasks


def main():
    with CompssEngine() as engine:
        if engine.fetch([engine.submit(tasks.add, 1, 2)]) != [3]:
            sys.exit("wrong sum")
        compss_wait_on(block_tasks.fail())


if __name__ == "__main__":
    main()
