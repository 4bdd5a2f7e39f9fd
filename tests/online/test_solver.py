"""Solvers in C, C++ and Fortran, with and without ranks of MPI: what they send, and how they
fail.
"""

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from compss_train import Simulations, Solver
from compss_train.cli.solvers import HEADERS
from compss_train.online.guard import NAME, descendants, processes
from tests.helpers.processes import is_running
from tests.helpers.shared_engine import other_process
from tests.helpers.waiting import wait_until
from tests.online.solvers.compiled import compiled, heat, mpirun, solver, solvers_running

CELLS = 11
STEPS = 6
LANGUAGES = {
    "C": lambda: mpirun(1, compiled("mpicc", "heat.c")),
    "C, 2 ranks": lambda: mpirun(2, compiled("mpicc", "heat.c")),
    "C, 3 ranks": lambda: mpirun(3, compiled("mpicc", "heat.c")),
    "C++, two files": lambda: [compiled("g++", "heat.cpp", "heat_output.cpp")],
    "Fortran": lambda: [compiled("gfortran", "compss_train.f90", "heat.f90", "libcompss_train.c")],
    "Fortran, 2 ranks": lambda: mpirun(
        2, compiled("mpif90", "melissa_heat.f90", "libcompss_train.c")
    ),
    "C++, C": lambda: [compiled("g++", "heat.cpp", "heat_output.cpp", flags=("-std=c++20", "-O2"))],
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_solver_of_each_language_sends_the_bits_of_numpy(language):
    command = [*LANGUAGES[language](), "{left}", str(STEPS), "{cells}"]
    value = {"left": np.float64(1 / 3), "cells": CELLS}
    sent = list(solver(command, lambda value, step, fields: (fields, fields.metadata))(value))
    assert [step for step, *_ in sent] == list(range(STEPS))
    for (step, fields, metadata), expected in zip(sent, heat(1 / 3, STEPS, CELLS), strict=True):
        assert list(fields) == ["temperature", "flux"]
        for field, values in zip(fields.values(), expected, strict=True):
            np.testing.assert_array_equal(field, values, strict=True)
        assert metadata == ({"flux": '{"even": true}'} if step % 2 == 0 else {})


def test_the_connection_is_tcp_where_a_socket_file_would_have_too_long_a_path(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("long" * 30)))
    spied = solver(["sh", "-c", "echo $COMPSS_TRAIN_SOLVER"])
    with pytest.raises(ChildProcessError, match=r"\n  tcp://"):
        list(spied(None))


def test_the_connection_may_be_tcp_with_a_token():
    run = solver(
        [*LANGUAGES["C, 2 ranks"](), "{}", "3", "4"], environment={"COMPSS_TRAIN_SOLVER": "tcp"}
    )
    assert len(list(run(1.0))) == 3
    spied = solver(
        ["sh", "-c", "echo $COMPSS_TRAIN_SOLVER"], environment={"SLURM_JOB_NUM_NODES": "2"}
    )
    with pytest.raises(ChildProcessError, match=r"\n  tcp://[\d.]+:\d+/[\w-]{22}$"):
        list(spied(None))


def test_the_header_compiles_after_mpi_and_without_it_in_both_languages():
    for compiler in ("gcc", "mpicc", "g++", "mpicxx"):
        with_mpi = ("-DWITH_MPI",) if compiler.startswith("mpi") else ()
        compiled(compiler, "faulty.c", flags=with_mpi)


def values_of(command, value, **options):
    """Return the arguments that a command gets."""
    with pytest.raises(ChildProcessError) as raised:
        list(solver(["printf", "<%s>", *command], **options)(value))
    return re.findall("<(.*?)>", str(raised.value).splitlines()[-1])


@pytest.mark.parametrize(
    ("command", "value", "arguments"),
    [
        (["{}"], 0.1, ["0.1"]),
        (["{0}", "{}"], 1e-300, ["1e-300"] * 2),
        (["{}"], "it is {}", ["it is {}"]),
        (["{}"], np.float32(0.1), [repr(float(np.float32(0.1)))]),
        (["{}"], True, ["True"]),
        (["-t={1}", "{0}"], (1 / 3, np.int64(7)), ["-t=7", repr(1 / 3)]),
        (["{1:.2f}", "{{}}"], [0.5, 2 / 3], ["0.67", "{}"]),
        (["{1}"], np.array([1, 0.1], np.float32), [repr(float(np.float32(0.1)))]),
        (["{0}"], torch.tensor([0.1], dtype=torch.float64), ["0.1"]),
        (["{T}", "--n={n}"], {"T": 0.1, "n": np.int8(3)}, ["0.1", "--n=3"]),
        (["plain"], None, ["plain"]),
    ],
)
def test_inputs_become_arguments(command, value, arguments):
    assert values_of(command, value) == arguments


@pytest.mark.parametrize(
    ("argument", "value", "said"),
    [
        ("{1}", [1.0], "'{1}' in command= does not fit the input"),
        ("{T}", [1.0], "it has no 'T'"),
        ("{0}", {"T": 1.0}, "'{0}' in command="),
        ("{}", [1.0, 2.0], "{} is a single value, and {0} the first of 2"),
        ("{0", 1.0, "'{0' in command="),
    ],
)
def test_arguments_that_an_input_lacks_are_errors(argument, value, said, raises):
    with raises(ValueError, said):
        list(solver(["true", argument])(value))


@pytest.mark.parametrize("inputs", [[1.0, 2.0], np.ones((3, 2)), range(4), torch.ones(2)])
def test_a_command_that_reads_nothing_of_its_inputs_is_an_error(inputs):
    with pytest.raises(
        ValueError, match=r"command=\['./heat', '-n'\] reads nothing of its inputs: write {}"
    ):
        Simulations(solver(["./heat", "-n"]), inputs)
    with pytest.raises(ValueError, match=r"'{0}' in command= does not fit the input"):
        Simulations(solver(["./heat", "{0}"]), [{"T": 1.0}])
    Simulations(solver(["./heat"]), [None] * 3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"command": "./heat {}"}, "command='./heat {}'"),
        ({"command": []}, "command=[]"),
        ({"command": ["./heat", 3]}, "not 3"),
        ({"environment": {"OMP_NUM_THREADS": 2}}, "not 2"),
        ({"sample": None}, "sample=None"),
    ],
)
def test_bad_arguments_are_errors(arguments, said, raises):
    with raises(TypeError, said):
        Solver(**{"command": ["./heat"], "sample": len, **arguments})


def test_cpus_are_counted():
    with pytest.raises(ValueError, match="cpus=0: give an integer of at least 1"):
        Solver(["./heat"], len, cpus=0)


FAULTS = {
    "killed": "ended by SIGKILL",
    "segfault": "ended by SIGSEGV",
    "exits": "ended with status 3",
    "leaves": "has disconnected without compss_train_finalize",
    "late": "ended with status 4",
    "silent": "ended with status 0 and has not connected",
    "half": "ended without having sent 'v'",
    "twice": "sent 'u' again without having sent 'v'",
    "new": "declared the field 'w' after the first time step",
    "length": "compss_train: the field u was declared before with another length",
    "unknown": "compss_train: the field w was not declared by compss_train_init",
    "nan": "sent time step 3, whose y has NaN or infinite values",
}


def sample_of_faulty(value, step, fields):
    return np.float32(step), fields["u"]


def take_all(samples, taken):
    for sample in samples:
        taken.append(sample)


@pytest.mark.parametrize("what", FAULTS)
def test_a_solver_that_fails_is_an_error_with_its_last_lines(what):
    samples = solver([compiled("gcc", "faulty.c"), "{}"], sample_of_faulty)(what)
    sent = []
    with pytest.raises(ChildProcessError) as raised:
        take_all(samples, sent)
    first, *lines = str(raised.value).splitlines()
    text = str(raised.value) if FAULTS[what].startswith("compss_train") else first
    assert FAULTS[what] in text
    assert f"faulty-c {what} " in first
    if what not in ("silent", "half", "late", "nan"):
        assert "  this goes wrong" in lines
    steps = {"half": 5, "late": 6, "silent": 0}.get(what, 3)
    assert [step for step, *_ in sent] == list(range(steps))


MPI_FAULTS = {
    "killed": "signal 9",
    "exits": "ended with status 3",
    "finishes": "rank 0 sends u, but rank 1 sends nothing more (compss_train_finalize)",
    "other": "rank 0 sends u, but rank 1 sends v",
    "order": "rank 0 sends u, but rank 1 sends a field of another name",
    "late": "ended with status 4",
}


@pytest.mark.parametrize("what", MPI_FAULTS)
def test_a_rank_that_fails_leaves_early_or_sends_something_else_is_an_error(what):
    command = [*mpirun(2, compiled("mpicc", "faulty.c", flags=("-DWITH_MPI",))), "{}"]
    sent = []
    with pytest.raises(ChildProcessError, match=re.escape(MPI_FAULTS[what])):
        take_all(solver(command, sample_of_faulty)(what), sent)
    for step, _, u in sent:
        np.testing.assert_array_equal(u, np.repeat([step, step + 10.0], 4))
    assert len(sent) <= 3 or what == "late"


def test_a_command_that_does_not_exist_is_named():
    with pytest.raises(
        ChildProcessError,
        match=r"ended with status 127.*\n.*cannot start ./nowhere in .*No such file",
    ):
        list(solver(["./nowhere", "{}"])(1.0))


def test_a_solver_runs_in_the_folder_where_it_was_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = solver(["sh", "-c", "pwd"])
    monkeypatch.chdir("/")
    with pytest.raises(ChildProcessError, match=f"\n  {tmp_path}$"):
        list(made(None))


def test_a_solver_by_itself_needs_the_variable_or_none():
    program = compiled("gcc", "faulty.c")
    bare = {name: value for name, value in os.environ.items() if name != "COMPSS_TRAIN_SOLVER"}
    failed = subprocess.run([program, "fine"], env=bare, capture_output=True, text=True)
    assert (failed.returncode, "COMPSS_TRAIN_SOLVER is not set" in failed.stderr) == (1, True)
    assert (
        subprocess.run([program, "fine"], env={**bare, "COMPSS_TRAIN_SOLVER": "none"}).returncode
        == 0
    )
    failed = subprocess.run(
        [program, "fine"], env={**bare, "COMPSS_TRAIN_SOLVER": "/no/w"}, capture_output=True
    )
    assert (failed.returncode, b"cannot connect to the fit: No such file" in failed.stderr) == (
        1,
        True,
    )


def test_another_version_of_the_header_is_named(tmp_path):
    text = Path(HEADERS, "compss_train.h").read_text()
    newer = text.replace("#define COMPSS_TRAIN_PROTOCOL 1", "#define COMPSS_TRAIN_PROTOCOL 7")
    assert newer != text
    (tmp_path / "compss_train.h").write_text(newer)
    program = compiled("gcc", "faulty.c", flags=(f"-include{tmp_path}/compss_train.h",))
    with pytest.raises(
        ChildProcessError, match=r"compiled with a compss_train.h of protocol 7.* has protocol 1"
    ):
        list(solver([program, "fine"])(None))


def test_samples_may_be_left_out_and_have_x_alone():
    command = [compiled("gcc", "faulty.c"), "fine"]
    every_other = solver(
        command, lambda value, step, fields: None if step % 2 else (fields["u"], step)
    )
    assert [step for step, *_ in every_other(None)] == [0, 2, 4]
    alone = solver(
        command, lambda value, step, fields: torch.from_numpy(fields["u"]) if step % 2 else None
    )
    assert [(step, float(x[0])) for step, x in alone(None)] == [(1, 1.0), (3, 3.0), (5, 5.0)]
    with pytest.raises(KeyError, match="w; the solver has sent u"):
        list(solver(command, lambda value, step, fields: fields["w"])(None))
    with pytest.raises(TypeError, match="sample= returned a tuple of 3; it returns"):
        list(solver(command, lambda value, step, fields: (step, 1, 2))(None))
    with pytest.raises(TypeError, match=r"sample= returned a list of arrays, .*tuple \(x, y\)"):
        list(solver(command, lambda value, step, fields: [fields["u"], fields["u"]])(None))
    with pytest.raises(TypeError, match="sample= returned a tuple with None"):
        list(solver(command, lambda value, step, fields: (fields["u"], None))(None))


def test_standard_output_stays_the_solvers(capfd):
    with pytest.raises(ChildProcessError, match=r"has not connected.*(\n  (\d+|unusual)){10}$"):
        # Two pipes, read in any order.
        list(solver(["sh", "-c", "seq 100; echo unusual >&2; seq 10"])(None))
    out, err = capfd.readouterr()
    assert out.split() == [*map(str, range(1, 101)), *map(str, range(1, 11))]
    assert err == "unusual\n"


def test_a_run_that_is_given_up_ends_with_all_its_processes(tmp_path):
    command = [
        *mpirun(2, compiled("mpicc", "faulty.c", flags=("-DWITH_MPI",))),
        "hangs",
        str(tmp_path / "flag"),
    ]
    samples = solver(command)(None)
    assert [next(samples)[0] for _ in range(3)] == [0, 1, 2]
    wait_until((tmp_path / "flag").exists)
    assert len(solvers_running()) >= 4  # a guard, mpirun and two ranks
    samples.close()
    assert solvers_running() == []


@pytest.mark.parametrize("started_by", ["guard", "mpirun", "shell"])
def test_a_solver_ends_with_its_guard(tmp_path, started_by):
    """Which is killed alone, and cannot end anything."""
    command = [compiled("gcc", "faulty.c"), "hangs", str(tmp_path / "flag")]
    if started_by == "mpirun":
        command = [*mpirun(2, compiled("mpicc", "faulty.c", flags=("-DWITH_MPI",))), *command[1:]]
    elif started_by == "shell":
        command = ["sh", "-c", f"{shlex.join(command)} & wait"]
    samples = solver(command)(None)
    assert [next(samples)[0] for _ in range(3)] == [0, 1, 2]
    wait_until((tmp_path / "flag").exists)
    [guard] = [
        pid
        for pid, (name, parent, _) in processes().items()
        if (name, parent) == (NAME, os.getpid())
    ]
    started = descendants(guard)
    os.kill(guard, signal.SIGKILL)
    with pytest.raises(ChildProcessError, match=r"has disconnected|ended by SIGKILL"):
        next(samples)
    wait_until(lambda: not any(map(is_running, started)))


def take_samples(connection, command):
    for _ in Solver(command, lambda *_: 0)(None):
        pass


def test_a_solver_ends_with_the_process_that_runs_it(tmp_path):
    """Which is killed, and cannot end anything."""
    program = compiled("gcc", "faulty.c")
    flag = tmp_path / "flag"
    command = ["sh", "-c", f"echo $$ > {tmp_path}/pid; {program} hangs {flag}; true"]
    with other_process(take_samples, command):  # kills it
        wait_until(flag.exists)
        shell = int((tmp_path / "pid").read_text())
        assert is_running(shell)
    wait_until(lambda: not is_running(shell))
