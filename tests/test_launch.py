import json
import os
import shutil
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from compss_train import launch
from compss_train.cli import main
from compss_train.launch import Node, host_nodes, loopback_nodes, project_xml, resources_xml

SCRIPTS = Path(__file__).parent.parent / "runcompss"
HOME = Path(os.environ.get("COMPSS_HOME", launch.DEFAULT_HOME))


def entries(xml):
    return ElementTree.fromstring(xml).findall("ComputeNode")


def script(name, *arguments, **environment):
    variables = {"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/"), "PYTHON": sys.executable}
    return subprocess.run(
        ["bash", SCRIPTS / name, *arguments],
        env=variables | environment,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=SCRIPTS.parent,
    )


@pytest.fixture
def app(tmp_path):
    path = tmp_path / "app.py"
    path.write_text("")
    return path


def test_one_node_has_the_physical_cores():
    (node,) = loopback_nodes(1)
    assert (node.name, node.units, node.gpus) == ("localhost", launch.physical_cores(), 0)


def test_loopback_nodes_share_the_cores_and_have_ports_of_their_own(monkeypatch):
    monkeypatch.setattr(launch, "physical_cores", lambda: 8)
    nodes = loopback_nodes(3)
    assert [node.name for node in nodes] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    assert [node.units for node in nodes] == [2, 2, 2]
    assert all(before.last_port < after.first_port for before, after in pairwise(nodes))
    assert [node.units for node in loopback_nodes(9)] == [1] * 9


def test_free_ports():
    first = launch.free_first_port(3)
    assert launch.FIRST_PORT <= first <= launch.LAST_PORT - 3 * launch.PORTS
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert not launch._is_free(listener.getsockname()[1])


def test_no_free_ports(monkeypatch):
    monkeypatch.setattr(launch, "_is_free", lambda port: False)
    with pytest.raises(OSError, match="no 10 free ports in a row"):
        launch.free_first_port(1)


def test_hosts():
    assert host_nodes(["a", "b"], units=4, gpus=2) == (Node("a", 4, 2), Node("b", 4, 2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: loopback_nodes(0), "nodes=0: give 1 to 254"),
        (lambda: loopback_nodes(2, gpus=1), "gpus=1 with nodes=2.*use one node"),
        (lambda: loopback_nodes(1, units=0), "units=0 for localhost: give at least 1"),
        (lambda: loopback_nodes(1, gpus=-1), "gpus=-1 for localhost"),
        (lambda: loopback_nodes(9, first_port=65500), "127.0.0.4 would listen on port 65530"),
        (lambda: host_nodes(["a", "a"]), "each of them once"),
        (lambda: Node(" ", 1), "needs the name of a host"),
    ],
)
def test_bad_nodes(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_project_file():
    first, second = entries(project_xml(loopback_nodes(2, 1), install_dir=Path("/c"), working_dir=Path("/w")))
    assert [entry.get("Name") for entry in (first, second)] == ["127.0.0.1", "127.0.0.2"]
    assert (first.findtext("InstallDir"), first.findtext("WorkingDir")) == ("/c/", "/w/127.0.0.1/")
    assert second.findtext("WorkingDir") == "/w/127.0.0.2/"


def test_resources_file():
    (entry,) = entries(resources_xml(loopback_nodes(1, units=6, gpus=2)))
    processors = {
        item.get("Name"): (item.findtext("ComputingUnits"), item.findtext("Type"))
        for item in entry.findall("Processor")
    }
    assert processors == {"MainProcessor": ("6", "CPU"), "GPUs": ("2", "GPU")}
    adaptor = entry.find("Adaptors/Adaptor")
    assert adaptor.get("Name").endswith("NIOAdaptor")
    assert adaptor.find("SubmissionSystem/Interactive") is not None
    assert int(adaptor.findtext("Ports/MinPort")) == launch.FIRST_PORT
    (entry,) = entries(resources_xml(loopback_nodes(1, units=6)))
    assert len(entry.findall("Processor")) == 1


@pytest.mark.skipif(
    not (HOME / "Runtime").is_dir() or not shutil.which("xmllint"), reason="needs COMPSs's schemas and xmllint"
)
def test_files_agree_with_the_schemas(tmp_path):
    schemas = HOME / "Runtime/configuration/xml"
    for nodes in (loopback_nodes(3), loopback_nodes(1, gpus=2)):
        for file, schema in zip(
            launch.write(tmp_path, nodes), ("projects/project", "resources/resources"), strict=True
        ):
            command = ["xmllint", "--noout", "--schema", schemas / f"{schema}_schema.xsd", file]
            subprocess.run(command, check=True, capture_output=True)


def test_compss_home_is_where_runcompss_lies(tmp_path, monkeypatch):
    scripts = tmp_path / "Runtime/scripts/user"
    scripts.mkdir(parents=True)
    (scripts / "runcompss").write_text("#!/bin/sh\n")
    (scripts / "runcompss").chmod(0o755)
    monkeypatch.delenv("COMPSS_HOME", raising=False)
    monkeypatch.setenv("PATH", str(scripts))
    assert launch.compss_home() == tmp_path
    monkeypatch.setenv("PATH", "/nowhere")
    assert launch.compss_home() is None
    monkeypatch.setenv("COMPSS_HOME", "/elsewhere")
    assert launch.compss_home() == Path("/elsewhere")


def test_configure(tmp_path, capsys):
    folder = tmp_path / "new" / "folder"
    assert main(["configure", "--nodes", "2", "--units", "3", "--folder", str(folder)]) == 0
    assert len(entries((folder / "project.xml").read_text())) == 2
    assert "127.0.0.2: 3 CPU units, 0 GPUs" in capsys.readouterr().out
    assert main(["configure", "--hosts", "n1, n2", "--gpus", "4", "--folder", str(folder)]) == 0
    assert [entry.get("Name") for entry in entries((folder / "resources.xml").read_text())] == ["n1", "n2"]


def test_configure_says_what_is_wrong(tmp_path, capsys):
    assert main(["configure", "--units", "-1", "--folder", str(tmp_path)]) == 2
    assert "compss-train configure: units=-1 for localhost" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_laptop_help():
    done = script("laptop.sh", "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Run an application under COMPSs")
    assert "--nodes=N" in done.stdout
    assert "set -euo" not in done.stdout


def test_laptop_without_runcompss(app):
    done = script("laptop.sh", str(app))
    assert done.returncode == 127
    assert "no runcompss on the PATH" in done.stderr
    assert "compss-train doctor" in done.stderr
    assert f"python {app}" in done.stderr


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
def test_scripts_say_what_is_wrong(name, arguments, message, app):
    done = script(name, "--dry-run", *(argument.format(app=app) for argument in arguments))
    assert done.returncode == 2
    assert message in done.stderr


def test_laptop_wants_flags_in_one_word(app):
    done = script("laptop.sh", "--units", "2", str(app))
    assert (done.returncode, "write --units=VALUE" in done.stderr) == (2, True)


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


FAKE_THAT_STAYS = """#!{python}
import os, pathlib, subprocess, sys, time
project = next(flag for flag in sys.argv if flag.startswith("--project=")).split("=")[1]
piper = pathlib.Path(project).parent / "workers" / "piper"
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", piper], start_new_session=True)
pathlib.Path({pid!r} + "_").write_text(str(child.pid))
os.rename({pid!r} + "_", {pid!r})
time.sleep(60)
"""


def test_laptop_ends_what_compss_leaves_behind(app, tmp_path):
    fake, pid = tmp_path / "runcompss", tmp_path / "pid"
    fake.write_text(FAKE_THAT_STAYS.format(python=sys.executable, pid=str(pid)))
    fake.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path), "PYTHON": sys.executable}
    with subprocess.Popen(["bash", SCRIPTS / "laptop.sh", app], env=environment, stderr=subprocess.PIPE) as laptop:
        wait_for(pid.exists)
        laptop.terminate()
        assert laptop.wait(30) == 130
    wait_for(lambda: not runs(int(pid.read_text())))


def wait_for(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def flags_of(done):
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    return words, dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)


def test_slurm_dry_run(app):
    words, flags = flags_of(script("slurm.sh", "--dry-run", str(app), "--workers", "4"))
    assert words[0] == "enqueue_compss"
    assert words[-3:] == [str(app), "--workers", "4"]
    assert (flags["num_nodes"], flags["job_name"], flags["graph"]) == ("2", "app", "false")
    assert flags["pythonpath"] == f"{app.parent}:{SCRIPTS.parent}"
    assert not {"gpus_per_node", "qos", "queue", "sc_cfg", "scheduler", "log_dir"} & set(flags)


def test_slurm_flags_go_before_variables(app):
    variables = {"NODES": "8", "GPUS": "4", "QOS": "long", "GRAPH": "true", "MODULES": "/mine", "SC_CFG": "here"}
    words, flags = flags_of(
        script("slurm.sh", "--dry-run", "--num_nodes=3", "--reservation=r", str(app), **variables)
    )
    assert words.count("--num_nodes=3") == 1
    assert "--num_nodes=8" not in words
    assert (flags["gpus_per_node"], flags["qos"], flags["graph"], flags["sc_cfg"]) == ("4", "long", "true", "here")
    assert flags["reservation"] == "r"
    assert flags["pythonpath"].startswith("/mine:")


@pytest.mark.parametrize(("minutes", "limit"), [("2", 60), ("10", 540), ("30", 1620), ("600", 35700)])
def test_compss_ends_the_run_before_slurm_does(app, minutes, limit):
    _, flags = flags_of(script("slurm.sh", "--dry-run", f"--exec_time={minutes}", str(app)))
    assert int(flags["wall_clock_limit"]) == limit < int(minutes) * 60


def test_own_limit(app):
    _, flags = flags_of(script("slurm.sh", "--dry-run", "--wall_clock_limit=99", str(app)))
    assert flags["wall_clock_limit"] == "99"


@pytest.mark.parametrize("minutes", ["", "1", "01:00:00", "-5"])
def test_bad_time(app, minutes):
    done = script("slurm.sh", "--dry-run", f"--exec_time={minutes}", str(app))
    assert done.returncode == 2
    assert "give whole minutes, 2 or more" in done.stderr


def test_slurm_without_compss(app):
    done = script("slurm.sh", str(app))
    assert done.returncode == 127
    assert "no enqueue_compss on the PATH" in done.stderr
