"""Modules that COMPSs's nodes lack: their sources are sent with the tasks."""

import shutil

import pytest

from tests.compss.conftest import INSIDE, OF_THREE
from tests.helpers.programs import write_modules

pytestmark = pytest.mark.timeout(OF_THREE)


@pytest.mark.parametrize("timeout", [0, 100])
def test_nodes_without_the_modules_of_a_program_import_what_was_sent(run, tmp_path, timeout):
    program = tmp_path / "program"
    program.mkdir()
    write_modules(program)
    shutil.copy(INSIDE / "without_modules.py", program / "train.py")
    done = run(program / "train.py", timeout, flags=("--nodes=2", "--units=1"))
    assert done.returncode == 0, done.output
    assert "same bits [True, True]" in done.output
    assert done.output.count("compss_train: module 'network' is not on ") == 1
    assert f"imports it as {program}/network.py was when the program began" in done.output
