import subprocess
import sys

import pytest

PROGRAM = """
import atexit, ctypes, sys
from compss_train.engines.compss.engine import exit_at_once
libc = ctypes.CDLL(None)
libc.on_exit(libc.abort, None)  # as a library's destructors are registered when it is loaded
atexit.register(print, "python's own ran", flush=True)
exit_at_once()
exit_at_once()
sys.exit(3)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's on_exit")
def test_the_exit_code_stays_and_destructors_do_not_run():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3, done.stderr
    assert done.stdout == "python's own ran\n"
