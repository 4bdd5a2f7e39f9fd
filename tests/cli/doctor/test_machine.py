from importlib import metadata

from compss_train.cli.doctor.machine import judge_open_files
from tests.cli.doctor.fake_machine import findings_by_name, states


def test_packages_that_are_not_installed(machine, monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    findings = findings_by_name()
    assert [findings[name].advice for name in ("torch", "numpy")] == ["pip install torch", "pip install numpy"]


def test_folder_that_cannot_be_written(machine, monkeypatch):
    monkeypatch.setenv("HOME", "/proc/1")
    finding = findings_by_name()["~/.COMPSs"]
    assert finding.state == "missing"
    assert "not writable" in finding.found


def test_open_files():
    assert [judge_open_files("files", limit).state for limit in (256, 1024, -1)] == ["warning", "ok", "ok"]


def test_pycompss_of_another_python(machine):
    machine.add_compss(suffix=".cpython-36m-x86_64-linux-gnu.so")
    findings = findings_by_name()
    assert states(findings, "pycompss") == ["missing"]
    assert "compiled as compss.cpython-36m" in findings["pycompss"].found


def test_runcompss_off_the_path(machine):
    scripts = machine.home / "Runtime/scripts/user"
    scripts.mkdir(parents=True)
    assert findings_by_name()["runcompss"].advice == f'export PATH="{scripts}:$PATH"'


def test_runcompss_that_fails(machine):
    machine.add_compss()
    machine.add_printing_program("runcompss", "ERROR: Cannot find Java", code=1)
    findings = findings_by_name()
    assert states(findings, "runcompss") == ["missing"]
    assert "ERROR: Cannot find Java" in findings["runcompss"].found


def test_programs_that_cannot_be_run(machine):
    machine.add_compss()
    machine.add_program("java", "no program")
    machine.add_program("ssh", "#!/no/interpreter\n")
    assert states(findings_by_name(), "java", "ssh to localhost") == ["missing", "missing"]


def test_java_home_without_java(machine, monkeypatch):
    machine.add_compss()
    monkeypatch.setenv("JAVA_HOME", str(machine.folder))
    findings = findings_by_name()
    assert states(findings, "JAVA_HOME") == ["missing"]
    assert "apt install default-jdk" in findings["JAVA_HOME"].advice
