import json
from importlib import metadata

from compss_train.cli.main import main


def test_command(machine, capsys):
    machine.compss()
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "The compss engine can run here."
    assert any(line.split() == ["ok", "numpy", metadata.version("numpy")] for line in lines)
    (machine.bin / "runcompss").unlink()
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "cannot run here yet: see runcompss." in out
    assert "not on the PATH; install COMPSs" in out


def test_json(machine, capsys):
    machine.compss()
    assert main(["doctor", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ready"] is True
    assert {"name": "numpy", "state": "ok", "found": metadata.version("numpy"), "advice": ""} in answer["findings"]
    assert main(["doctor", "--json", "--nodes", "nowhere"]) == 1
    assert json.loads(capsys.readouterr().out)["ready"] is False
