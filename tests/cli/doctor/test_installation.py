from tests.cli.doctor.machine import found, states


def test_pycompss_of_another_python(machine):
    machine.compss(suffix=".cpython-36m-x86_64-linux-gnu.so")
    findings = found()
    assert states(findings, "pycompss") == ["missing"]
    assert "compiled as compss.cpython-36m" in findings["pycompss"].found


def test_runcompss_off_the_path(machine):
    scripts = machine.home / "Runtime/scripts/user"
    scripts.mkdir(parents=True)
    assert found()["runcompss"].advice == f'export PATH="{scripts}:$PATH"'


def test_runcompss_that_fails(machine):
    machine.compss()
    machine.says("runcompss", "ERROR: Cannot find Java", code=1)
    findings = found()
    assert states(findings, "runcompss") == ["missing"]
    assert "ERROR: Cannot find Java" in findings["runcompss"].found


def test_tools_that_cannot_be_run(machine):
    machine.compss()
    machine.tool("java", "no program")
    machine.tool("ssh", "#!/no/interpreter\n")
    assert states(found(), "java", "ssh to localhost") == ["missing", "missing"]
