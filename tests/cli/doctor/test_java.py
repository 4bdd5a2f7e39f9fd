from tests.cli.doctor.machine import found, states


def test_java_home_without_java(machine, monkeypatch):
    machine.compss()
    monkeypatch.setenv("JAVA_HOME", str(machine.folder))
    findings = found()
    assert states(findings, "JAVA_HOME") == ["missing"]
    assert "apt install default-jdk" in findings["JAVA_HOME"].advice
