"""Runs tests on the COMPSs engine, inside an application of COMPSs; the arguments are pytest's.

The application runs with python -O, where pytest still checks the assertions of modules that it
rewrites. A test that must fail verifies this first.
"""

import sys
from pathlib import Path

import pytest

OPTIONS = [
    # faulthandler would replace the handlers of signals that the JVM in this process uses.
    *("-p", "no:faulthandler", "-p", "no:cacheprovider"),
    *(
        "-W",
        "ignore::pytest.PytestConfigWarning",
        "-W",
        ("ignore:the compss engine cannot see which workers"),
    ),
    *("--engines", "compss"),
]


def main() -> int:
    must_fail = str(Path(sys.argv[0]).with_name("must_fail.py"))  # __file__ is PyCOMPSs's launcher
    if pytest.main([*OPTIONS, "-q", must_fail]) != pytest.ExitCode.TESTS_FAILED:
        print("assertions are not checked here")
        return 1
    return int(pytest.main([*OPTIONS, *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
