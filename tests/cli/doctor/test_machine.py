from importlib import metadata

import pytest

from compss_train.cli.doctor.machine import judge_open_files
from tests.cli.doctor.fake_machine import findings_by_name


def test_packages_that_are_not_installed(machine, monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    findings = findings_by_name()
    assert [findings[name].advice for name in ("torch", "numpy")] == ["pip install torch", "pip install numpy"]


def test_open_files():
    assert [judge_open_files("files", limit).state for limit in (256, 1024, -1)] == ["warning", "ok", "ok"]


def unwritable(machine, monkeypatch):
    monkeypatch.setenv("HOME", "/proc/1")


def other_python(machine, monkeypatch):
    machine.add_compss(suffix=".cpython-36m-x86_64-linux-gnu.so")


def failing_runcompss(machine, monkeypatch):
    machine.add_compss()
    machine.add_printing_program("runcompss", "ERROR: Cannot find Java", code=1)


def off_the_path(machine, monkeypatch):
    (machine.home / "Runtime/scripts/user").mkdir(parents=True)


def broken_programs(machine, monkeypatch):
    machine.add_compss()
    machine.add_program("java", "no program")
    machine.add_program("ssh", "#!/no/interpreter\n")


def java_home_without_java(machine, monkeypatch):
    machine.add_compss()
    monkeypatch.setenv("JAVA_HOME", str(machine.folder))


@pytest.mark.parametrize(
    ("break_machine", "missing", "text"),
    [
        (unwritable, "~/.COMPSs", "not writable"),
        (other_python, "pycompss", "compiled as compss.cpython-36m"),
        (failing_runcompss, "runcompss", "ERROR: Cannot find Java"),
        (off_the_path, "runcompss", 'export PATH="{home}/Runtime/scripts/user:$PATH"'),
        (broken_programs, "java", "apt install default-jdk"),
        (broken_programs, "ssh to localhost", "ssh-copy-id localhost"),
        (java_home_without_java, "JAVA_HOME", "apt install default-jdk"),
    ],
)
def test_what_is_missing_is_found(machine, monkeypatch, break_machine, missing, text):
    break_machine(machine, monkeypatch)
    finding = findings_by_name()[missing]
    assert finding.state == "missing"
    assert text.format(home=machine.home) in f"{finding.found}; {finding.advice}"
