"""Programs on three nodes of different size that ``ray start`` has started; docs/testing.md lists
what was run.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from tests.helpers.processes import ROOT
from tests.helpers.ray_cluster import free_port, started_by_hand
from tests.helpers.waiting import wait_until
from tests.ray.three_nodes import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LIMIT = 400
"""Seconds for a program, whose processes may start for minutes on a busy machine."""
FITS = 50
"""Fits of a program whose leaks would be seen."""
COMMAND = (sys.executable, "-m", "compss_train")
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
PROGRAM = str(ROOT / "tests/ray/three_nodes.py")


@pytest.fixture(scope="module")
def cluster():
    """The environment of programs on nodes of 1, 2 and 1 CPUs with small object stores."""
    with started_by_hand(cpus=(1, 2, 1), store=80_000_000) as environment:
        yield environment


def started(environment, output, place="auto", **options):
    command = [sys.executable, PROGRAM, place, str(output), json.dumps(options)]
    return subprocess.Popen(command, env=environment, **PIPES)


def await_end(process, code=0):
    printed, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == code, printed + errors
    return printed


@contextmanager
def small_disk(folder, megabytes):
    """Mount a disk of its own."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def assert_serial_bits(output, **options):
    with np.load(output) as parameters:
        for name, array in train("serial", **options).items():
            np.testing.assert_array_equal(parameters[name], array, err_msg=name)


@pytest.mark.parametrize("kind", ["task", "actor"])
def test_a_fit_in_a_task_or_an_actor_has_the_serial_bits(cluster, tmp_path, kind):
    output = tmp_path / "parameters.npz"
    await_end(started(cluster, output, kind))
    assert_serial_bits(output)


def test_three_programs_at_once_have_the_serial_bits(cluster, tmp_path):
    outputs = [tmp_path / f"{number}.npz" for number in range(3)]
    programs = [started(cluster, output) for output in outputs]
    for program, output in zip(programs, outputs, strict=True):
        await_end(program)
        assert_serial_bits(output)


def test_a_thousand_blocks_in_stores_that_hold_a_third_have_the_serial_bits(cluster, tmp_path):
    options = {"blocks": 1000, "rows": 8000, "width": 8000, "epochs": 1}
    output = tmp_path / "parameters.npz"
    await_end(started(cluster, output, **options))
    assert_serial_bits(output, **options)


def test_a_program_that_is_killed_goes_on_in_another_cluster(cluster, tmp_path):
    output = tmp_path / "parameters.npz"
    folder = str(tmp_path / "saved")
    await_end(started(cluster, output, folder=folder, kills=True), code=-signal.SIGKILL)
    with started_by_hand(cpus=(2, 2)) as environment:
        await_end(started(environment, output, folder=folder))
    assert_serial_bits(output)


def test_many_fits_leave_nothing_in_the_cluster(cluster, tmp_path):
    printed = await_end(started(cluster, tmp_path, "leaks", fits=FITS, epochs=1))
    early, late = json.loads(printed.splitlines()[-1])
    assert early == late


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
def test_a_disk_that_is_full_of_spilled_objects_ends_a_fit_that_goes_on_with_more_room(tmp_path):
    """A file fills the disk after the first round."""
    disk = tmp_path / "disk"
    output = tmp_path / "parameters.npz"
    options = {"blocks": 8, "rows": 160, "width": 100_000, "folder": str(tmp_path / "saved")}
    with small_disk(disk, 400):
        spilling = f"--object-spilling-directory={disk}"
        with started_by_hand(spilling, cpus=(1, 2, 1), store=80_000_000) as environment:
            program = started(environment, output, fills=str(disk / "filling"), **options)
            _, errors = program.communicate(timeout=LIMIT)
            assert program.returncode == 1, errors
            assert "its object store is full, and so is the disk" in errors.splitlines()[-1]
            (disk / "filling").unlink()
            await_end(started(environment, output, **options))
    options["folder"] = None
    assert_serial_bits(output, **options)


def run(environment, *command, folder=None):
    """Run a command in a folder; return what it prints."""
    return await_end(subprocess.Popen([*command], cwd=folder, env=environment, **PIPES))


def write_run_file(folder):
    """Write a run file whose network is in a module beside it."""
    example = run(os.environ, *COMMAND, "fit", "--example")
    before, _, with_arguments = example.partition("[network]")
    _, _, after = with_arguments.partition("[data]")
    network = '[network]\nimport = "nets:Net"\n\n'
    (folder / "spirals.toml").write_text(f"{before}{network}[data]{after}")
    (folder / "nets.py").write_text(
        "from torch import nn\n\n\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self):\n"
        "        super().__init__(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))\n"
    )


FIT = ("fit", "spirals.toml", "--set=fit.num_epochs=2")


def measured_outputs(folder, environment, engine):
    """Evaluate and predict in a folder; return the measured values and the outputs."""
    np.save(folder / "points.npy", np.linspace(-1, 1, 20, dtype="float32").reshape(10, 2))
    np.save(folder / "kinds.npy", np.arange(10) % 3)
    files = ("--input=points.npy", "--output=outputs.npy")
    run_options = ("runs/spirals", f"--engine={engine}", "--trust")
    data = ("--data", "points.npy", "kinds.npy")
    measured = run(environment, *COMMAND, "evaluate", *run_options, "--json", *data, folder=folder)
    run(environment, *COMMAND, "predict", *run_options, *files, folder=folder)
    return json.loads(measured), np.load(folder / "outputs.npy")


def serial_outputs(folder):
    """Train, evaluate and predict in a new folder, on the serial engine."""
    folder.mkdir()
    write_run_file(folder)
    run(os.environ, *COMMAND, *FIT, "--engine=serial", folder=folder)
    return measured_outputs(folder, os.environ, "serial")


def test_the_commands_fit_evaluate_and_predict_give_the_serial_bits(cluster, tmp_path):
    write_run_file(tmp_path)
    run(cluster, *COMMAND, *FIT, folder=tmp_path)
    measured, outputs = measured_outputs(tmp_path, cluster, "auto")
    serial_measured, serial = serial_outputs(tmp_path / "serial")
    assert measured == serial_measured
    np.testing.assert_array_equal(outputs, serial)


@pytest.fixture(scope="module")
def job_server():
    """The environment of ``ray job submit`` to a cluster of three nodes."""
    for module in ("aiohttp_cors", "opencensus", "smart_open"):
        pytest.importorskip(module, reason="needs ray[default]")
    port = free_port()
    options = (
        "--include-dashboard=true",
        f"--dashboard-port={port}",
        f"--dashboard-agent-listen-port={free_port()}",
    )
    with started_by_hand(*options, cpus=(1, 2, 1)) as environment:
        environment["RAY_ADDRESS"] = f"http://127.0.0.1:{port}"

        def takes_jobs():  # once the agent of the head runs
            process = submission(environment, "--", "true")
            process.communicate(timeout=LIMIT)
            return process.returncode == 0

        wait_until(takes_jobs, LIMIT)
        yield environment


def submission(environment, *command):
    """Start a process that submits a job."""
    submit = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", *command]
    return subprocess.Popen(submit, env=environment, **PIPES)


def test_a_submitted_program_has_the_serial_bits(job_server, tmp_path):
    """Its nodes get the program from Ray."""
    program = tmp_path / "program"
    program.mkdir()
    shutil.copy(PROGRAM, program / "train.py")
    output = tmp_path / "parameters.npz"
    command = [sys.executable, "train.py", "auto", str(output), "{}"]
    await_end(submission(job_server, f"--working-dir={program}", "--", *command))
    assert_serial_bits(output)


def test_a_submitted_run_file_has_the_serial_bits(job_server, tmp_path):
    write_run_file(tmp_path)
    fit = [*COMMAND, *FIT]
    ours, serial = tmp_path / "ours", tmp_path / "serial"
    working_folder = f"--working-dir={tmp_path}"
    await_end(submission(job_server, working_folder, "--", *fit, f"--output={ours}"))
    run(os.environ, *fit, f"--output={serial}", "--engine=serial", folder=tmp_path)
    name = "parameters.safetensors"
    assert (ours / name).read_bytes() == (serial / name).read_bytes()
