"""The scripts that start applications under COMPSs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.helpers.processes import is_running
from tests.helpers.waiting import LIMIT, text_of, wait_until

SCRIPTS = Path(__file__).parents[2] / "runcompss"


def entries(xml):
    return ElementTree.fromstring(xml).findall("ComputeNode")


def script(name, *arguments, **environment):
    variables = {
        "PATH": "/usr/bin:/bin",
        "HOME": os.environ.get("HOME", "/"),
        "PYTHON": sys.executable,
    }
    return subprocess.run(
        ["bash", SCRIPTS / name, *arguments],
        env=variables | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        cwd=SCRIPTS.parent,
    )


@pytest.fixture
def app(tmp_path):
    path = tmp_path / "app.py"
    path.write_text("")
    return path


@pytest.mark.parametrize(
    ("name", "missing"), [("laptop.sh", "runcompss"), ("slurm.sh", "enqueue_compss")]
)
def test_without_compss_scripts_say_what_is_missing(app, name, missing):
    done = script(name, str(app))
    assert done.returncode == 127
    assert f"no {missing} on the PATH" in done.stderr
    assert name == "slurm.sh" or (
        "compss-train doctor" in done.stderr and f"python {app}" in done.stderr
    )


@pytest.mark.parametrize("name", ["laptop.sh", "slurm.sh"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "which application?"),
        (("--flag=1", "nothing.py"), "there is no file nothing.py"),
        (("{app}", "two words"), "'two words' would not survive"),
        (("{app}", "$(id)"), "would not survive"),
        (("{app}", ""), "would be lost"),
        (("--python_interpreter=/no/python", "{app}"), "no Python /no/python"),
    ],
)
def test_scripts_reject_invalid_arguments(name, arguments, message, app):
    done = script(name, "--dry-run", *(argument.format(app=app) for argument in arguments))
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("laptop.sh", ["--units", "2"], "write --units=VALUE"),
        *(
            ("slurm.sh", [f"--exec_time={minutes}"], "give whole minutes, 2 or more")
            for minutes in ("", "1", "01:00:00", "-5")
        ),
        ("slurm.sh", ["--requeue=often"], "give the number of times"),
    ],
)
def test_scripts_reject_invalid_flags(app, name, flags, message):
    done = script(name, "--dry-run", *flags, str(app))
    assert (done.returncode, message in done.stderr) == (2, True)


FAKE_RUNCOMPSS = """#!{python}
import json, pathlib, sys
files = [flag.split("=")[1] for flag in sys.argv if flag.startswith(("--project=", "--resources="))]
print(json.dumps([sys.argv[1:], [pathlib.Path(file).read_text() for file in files]]))
sys.exit(7)
"""


def test_laptop_calls_runcompss(app, tmp_path):
    fake = tmp_path / "bin" / "runcompss"
    fake.parent.mkdir()
    fake.write_text(FAKE_RUNCOMPSS.format(python=sys.executable))
    fake.chmod(0o755)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    flags = ["--nodes=2", "--units=3", "--graph", "-d", "--streaming=FILES", "--pythonpath=/mine"]
    path = f"{fake.parent}:/usr/bin:/bin"
    done = script("laptop.sh", *flags, str(app), "--nodes=5", PATH=path, TMPDIR=str(temporary))
    assert done.returncode == 7, done.stderr
    arguments, (project, resources) = json.loads(done.stdout)
    assert f"--pythonpath=/mine:{app.parent}:{SCRIPTS.parent}" in arguments
    assert f"--python_interpreter={sys.executable}" in arguments
    assert arguments[-6:] == [
        "--cpu_affinity=disabled",
        "--graph=true",
        "-d",
        "--streaming=FILES",
        str(app),
        "--nodes=5",
    ]
    assert len(entries(project)) == len(entries(resources)) == 2
    assert entries(resources)[0].findtext("Processor/ComputingUnits") == "3"
    assert entries(project)[0].findtext("WorkingDir").startswith(str(temporary))
    assert not list(temporary.iterdir())


LINGERING_RUNCOMPSS = """#!{python}
import os, pathlib, signal, subprocess, sys
project = next(flag for flag in sys.argv if flag.startswith("--project=")).split("=")[1]
piper = pathlib.Path(project).parent / "workers" / "piper"
hangs = "import signal; signal.alarm(250); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", hangs, piper], start_new_session=True)
pathlib.Path({pid!r}).write_text(str(child.pid))
signal.alarm(250)
signal.pause()
"""


def test_laptop_kills_remaining_processes(app, tmp_path):
    fake = tmp_path / "runcompss"
    pid = tmp_path / "pid"
    fake.write_text(LINGERING_RUNCOMPSS.format(python=sys.executable, pid=str(pid)))
    fake.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYTHON": sys.executable,
    }
    with subprocess.Popen(
        ["bash", SCRIPTS / "laptop.sh", app], env=environment, stderr=subprocess.PIPE
    ) as laptop:
        child = int(text_of(pid))
        laptop.terminate()
        assert laptop.wait(LIMIT) == 130
    wait_until(lambda: not is_running(child))


def flags_of(done):
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    return words, dict(
        word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word
    )


def test_slurm_dry_run(app):
    words, flags = flags_of(script("slurm.sh", "--dry-run", str(app), "--workers", "4"))
    assert words[0] == "enqueue_compss"
    assert words[-3:] == [str(app), "--workers", "4"]
    assert (flags["num_nodes"], flags["job_name"], flags["graph"]) == ("2", "app", "false")
    assert flags["pythonpath"] == f"{app.parent}:{SCRIPTS.parent}"
    assert not {"gpus_per_node", "qos", "queue", "sc_cfg", "scheduler", "log_dir"} & set(flags)


def test_slurm_flags_override_variables(app):
    variables = {
        "NODES": "8",
        "GPUS": "4",
        "QOS": "long",
        "GRAPH": "true",
        "MODULES": "/mine",
        "SC_CFG": "here",
    }
    given = ("--num_nodes=3", "--reservation=r", "--wall_clock_limit=99")
    words, flags = flags_of(script("slurm.sh", "--dry-run", *given, str(app), **variables))
    assert words.count("--num_nodes=3") == 1
    assert "--num_nodes=8" not in words
    assert (flags["gpus_per_node"], flags["qos"], flags["graph"], flags["sc_cfg"]) == (
        "4",
        "long",
        "true",
        "here",
    )
    assert (flags["reservation"], flags["wall_clock_limit"]) == ("r", "99")
    assert flags["pythonpath"].startswith("/mine:")


@pytest.mark.parametrize(
    ("minutes", "limit"), [("2", 60), ("10", 540), ("30", 1620), ("600", 35700)]
)
def test_compss_ends_the_run_before_slurm_does(app, minutes, limit):
    _, flags = flags_of(script("slurm.sh", "--dry-run", f"--exec_time={minutes}", str(app)))
    assert int(flags["wall_clock_limit"]) == limit < int(minutes) * 60


def test_requeue_warns_the_job_instead_of_a_limit_of_compss(app):
    words, flags = flags_of(
        script(
            "slurm.sh",
            "--dry-run",
            "--requeue=3",
            "--exec_time=10",
            "--pre_env_script=/modules.sh",
            str(app),
        )
    )
    submit = [
        word.removeprefix("--extra_submit_flag=")
        for word in words
        if word.startswith("--extra_submit_flag=")
    ]
    assert submit[:3] == ["--requeue", "--open-mode=append", "--signal=B:TERM@60"]
    assert submit[3] == r"--export=ALL\,COMPSS_TRAIN_REQUEUES=3"
    assert flags["wall_clock_limit"] == "0"
    assert flags["pre_env_script"] == f"{SCRIPTS / 'requeue.sh'}:/modules.sh"


JOB_SCRIPT = """#!/bin/bash -e
source {scripts}/requeue.sh
#  --log_dir={folder} --x
touch {folder}/ran
exit {code}
"""


def fake_scontrol(folder):
    """Add SLURM's program; return the file to which it writes what is queued again."""
    requeued = folder / "requeued"
    program = folder / "scontrol"
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = requeue ]; then echo "$@" >{requeued}; fi\necho JobState=RUNNING\n'
    )
    program.chmod(0o755)
    return requeued


@pytest.mark.parametrize(
    ("code", "restarts", "again"),
    [(0, 0, False), (1, 0, False), (143, 0, True), (75, 1, True), (75, 2, False)],
)
def test_jobs_that_were_stopped_are_queued_again(tmp_path, code, restarts, again):
    job = tmp_path / "job.sh"
    logs = tmp_path / ".COMPSs" / "7"
    job.write_text(JOB_SCRIPT.format(scripts=SCRIPTS, folder=tmp_path, code=code))
    requeued = fake_scontrol(tmp_path)
    if restarts:
        logs.mkdir(parents=True)
    variables = {"SLURM_JOB_ID": "7", "COMPSS_TRAIN_REQUEUES": "2"}
    if restarts:  # SLURM sets it then only
        variables["SLURM_RESTART_COUNT"] = str(restarts)
    done = subprocess.run(
        ["bash", "-e", job],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": "/", **variables},
        timeout=LIMIT,
    )
    assert done.returncode == code
    assert (tmp_path / "ran").exists()
    assert requeued.exists() == again
    assert not again or requeued.read_text() == "requeue 7\n"
    assert not logs.exists()
    assert not restarts or logs.with_name(f"7.{restarts - 1}").exists()


WARNED_EARLY = """#!/bin/bash -e
source {scripts}/requeue.sh
kill -TERM $PPID
sleep 1
code=0
bash -c 'exec -a pycompss/runtime/launch.py sleep 100' || code=$?
exit $code
"""


def test_a_job_that_is_warned_before_its_program_starts_is_queued_again(tmp_path):
    job = tmp_path / "job.sh"
    job.write_text(WARNED_EARLY.format(scripts=SCRIPTS))
    requeued = fake_scontrol(tmp_path)
    variables = {"SLURM_JOB_ID": "7", "COMPSS_TRAIN_REQUEUES": "2"}
    done = subprocess.run(
        ["bash", "-e", job],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path), **variables},
        timeout=LIMIT,
        start_new_session=True,  # the script looks for the program in its session
    )
    assert done.returncode == 143
    assert requeued.read_text() == "requeue 7\n"
