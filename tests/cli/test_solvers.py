"""``compss-train headers`` and ``send``: what solvers are compiled with, and how their output is
sent.
"""

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from compss_train.cli import solvers
from compss_train.online.job_variables import (
    ADDRESS_VARIABLE,
    NAME_VARIABLE,
    TOKEN_VARIABLE,
)
from tests.buffers.kinds import Thread
from tests.helpers.waiting import LIMIT, wait_until
from tests.net.plain_clients import TOKEN
from tests.online.solvers.compiled import SOURCES, STANDARDS, heat, mpirun, needs, solver
from tests.online.stub_fits import stub_fit

NAMES = {
    "compss_train.h",
    "compss_train.f90",
    "libcompss_train.c",
    "melissa_api.h",
    "melissa_api.f90",
    "melissa/api.h",
}


def test_headers_are_files_of_the_package(command):
    folder = Path(command("headers").out.strip())
    assert {str(path.relative_to(folder)) for path in folder.rglob("*.*")} == {
        *NAMES,
        "melissa/api.h",
    }
    settings = Path(__file__).parents[2] / "pyproject.toml"
    assert '"online/headers/**/*"' in settings.read_text()


def test_the_folder_for_solvers_in_python_has_melissas_module(command):
    folder = Path(command("headers", "--python").out.strip())
    code = "import sys; from melissa_api import *; print(*sorted(n for n in dir() if 'm' == n[0]))"
    paths = os.pathsep.join([str(folder), str(Path(__file__).parents[2])])
    names = subprocess.run(
        [sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert names.split() == [
        "melissa_finalize",
        "melissa_init",
        "melissa_send",
        "melissa_send_with_metadata",
    ]


def test_a_solver_links_the_library_that_was_built(command, tmp_path):
    needs("mpif90")
    built = command("headers", "--build", str(tmp_path / "lib")).out.split()
    assert built == [str(tmp_path / "lib" / name) for name in solvers.LIBRARIES]
    include = command("headers").out.strip()
    source = str(SOURCES / "melissa_heat.f90")
    for library in ("melissa", "melissa_api", "compss_train"):
        link = [
            "mpif90",
            *STANDARDS["mpif90"],
            f"-I{include}",
            "-o",
            library,
            source,
            "-Llib",
            f"-l{library}",
        ]
        subprocess.run(link, check=True, cwd=tmp_path)
    sent = list(solver([*mpirun(2, str(tmp_path / "melissa")), "0.5", "3", "4"])(None))
    assert [fields["temperature"].tolist() for _, _, fields in sent] == [
        u.tolist() for u, _ in heat(0.5, 3, 4)
    ]


def test_a_compiler_that_fails_or_is_missing_is_an_error(command, tmp_path, monkeypatch):
    failed = command("headers", "--build", str(tmp_path), "--compiler", "false", code=2)
    assert "false -O2 -fPIC -c" in failed.err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (
        "there is neither mpicc nor cc" in command("headers", "--build", str(tmp_path), code=2).err
    )


RECORDS = "import struct, sys; [sys.stdout.buffer.write(struct.pack('2f', n, 0)) for n in range(5)]"
ENDINGS = {
    "": (0, "5 samples sent", [5]),
    "sys.exit(3)": (2, "ended with status 3", []),
    "sys.stdout.flush(); import os; os.kill(os.getpid(), 9)": (2, "ended by SIGKILL", []),
    "sys.stdout.buffer.write(b'abc')": (2, "the last record has 3 bytes of 8", []),
    "sys.stdout.buffer.write(b'abc'); sys.exit('no convergence')": (
        2,
        ("ended with status 1 no convergence"),
        [],
    ),
}


def send(running, *options):
    """Return the command that sends x and y of one number each."""
    address = ("send", running.coordinator.url, "--token", TOKEN, "--x", "1", "--y", "1")
    return [*address, *options]


WITHOUT_TORCH = """
import sys
from compss_train.cli import main
assert main(sys.argv[1:]) == 0
assert "torch" not in sys.modules
"""


def test_send_imports_no_torch():
    with stub_fit() as running:
        arguments = send(running, "--", sys.executable, "-c", RECORDS)
        program = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
        subprocess.run(program, check=True, timeout=LIMIT)
        assert running.workers[0].drain() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("ending", ENDINGS)
def test_send_sees_how_a_solver_ends(command, ending):
    code, said, finished = ENDINGS[ending]
    with stub_fit() as running:
        program = [sys.executable, "-c", f"{RECORDS}; {ending}"]
        assert said in command(*send(running, "--name", "solver", "--", *program), code=code).err
        assert running.coordinator.wait_for(
            "finished" if finished else "failed", len(finished) or 1
        )
        assert running.coordinator.received("finished") == finished
        wait_until(lambda: running.workers[0].buffer.samples_put == 5)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ([], 0, "5 samples sent; if the solver has failed, nobody knows"),
        (["--samples", "5"], 0, "5 samples sent"),
        (["--samples", "6"], 2, "5 samples in place of --samples 6"),
    ],
)
def test_send_counts_the_samples_of_a_pipe(command, monkeypatch, options, code, said):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(bytes(8 * 5))))
    with stub_fit() as running:
        assert said in command(*send(running, *options), code=code).err
        assert running.coordinator.wait_for("failed" if code else "finished")


def test_the_solver_ends_when_training_does(command):
    with stub_fit() as running:
        running.coordinator.senders.closed = True
        endless = [sys.executable, "-c", "while True: print(end='x' * 8)"]
        assert re.search(
            "no more samples|training has ended", command(*send(running, "--", *endless)).err
        )


def test_send_says_that_its_fit_has_failed(command):
    with stub_fit() as running:

        def fail():
            wait_until(lambda: running.workers[0].buffer.samples_put)
            running.coordinator.close()

        failing = Thread(fail)
        endless = [sys.executable, "-c", "while True: print(end='x' * 8)"]
        said = command(*send(running, "--", *endless), code=2).err
        failing.result()
        lost = (
            f"the fit at {running.coordinator.url} has failed, or was stopped or killed; no "
            "more samples are"
        )
        assert re.search(rf"{lost} accepted after \d+ samples of this stream", said)


def test_the_solver_does_not_get_the_token(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)

    def send_records(options, token, file):
        assert token == TOKEN
        assert TOKEN_VARIABLE not in os.environ
        return "sent"

    monkeypatch.setattr("compss_train.online.raw_records.send_records", send_records)
    assert solvers.send(SimpleNamespace(address="tcp://127.0.0.1:5555", token=None)) == 0


def test_in_a_job_the_address_and_the_name_are_those_of_its_environment(monkeypatch, raises):
    sent = []

    def send_records(options, token, file):
        sent.append((options.address, options.name))
        return "sent"

    monkeypatch.setattr("compss_train.online.raw_records.send_records", send_records)
    with raises(ValueError, "address"):
        solvers.send(SimpleNamespace(address=None, token=TOKEN, name=None))
    monkeypatch.setenv(ADDRESS_VARIABLE, "tcp://node1:5555")
    monkeypatch.setenv(NAME_VARIABLE, "simulation-000003-0123abcd")
    for address, name in ((None, None), (None, "mine"), ("tcp://node2:5555", None)):
        solvers.send(SimpleNamespace(address=address, token=TOKEN, name=name))
    assert sent == [
        ("tcp://node1:5555", "simulation-000003-0123abcd"),
        ("tcp://node1:5555", "mine"),
        ("tcp://node2:5555", None),
    ]
