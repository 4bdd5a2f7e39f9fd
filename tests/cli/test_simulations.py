"""``compss-train simulate``: which simulations it finds, and what it says of them."""

import sys

import pytest

from compss_train.cli import main
from tests.online.test_simulation_writer import PROGRAM


def test_the_command_writes_reports_and_goes_on(tmp_path, monkeypatch, capsys):
    (tmp_path / "a_study.py").write_text(PROGRAM)
    (tmp_path / "go on").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    command = ["simulate", "a_study.py:simulations", "--output", "data", "--count", "3"]
    for engine in ([], ["--engine", "serial"]):
        assert main([*command, *engine]) == 0
        assert capsys.readouterr().out == f"6 files in {tmp_path}/data\n"
    assert len((tmp_path / "runs").read_text().split()) == 6
    assert main(["simulate", "a_study.py:nothing", "--output", "other"]) == 2
    assert main(["simulate", "a_study.py:PROGRAM", "--output", "other"]) == 2
    assert main(["simulate", "absent.py:simulations", "--output", "other"]) == 2
    assert "absent.py does not exist" in capsys.readouterr().err


@pytest.mark.filterwarnings("always::UserWarning")  # as in a program, whose command shows them
def test_simulations_that_were_given_up_are_in_the_status(tmp_path, monkeypatch, capsys):
    (tmp_path / "bad_study.py").write_text(
        "from compss_train import Simulations\n"
        "def simulate(number):\n"
        "    if number:\n"
        "        raise RuntimeError('no mesh')\n"
        "    yield [0.0], [1.0]\n"
        "def simulations():\n"
        "    return Simulations(simulate, [0, 1], retries=0)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    command = ["simulate", "bad_study.py:simulations", "--output", "data", "--engine", "serial"]
    assert main(command) == 1
    said = capsys.readouterr()
    assert said.out == f"1 file in {tmp_path}/data\n"
    assert "simulation 1 of input 1 failed: RuntimeError: no mesh" in said.err
