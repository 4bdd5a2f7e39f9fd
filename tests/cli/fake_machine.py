"""A fake machine that has only the programs a test adds, and the doctor's findings on it."""

import argparse
import json
import platform
import sysconfig
from importlib import metadata

from compss_train._utils import __version__
from compss_train.cli.doctor import examine
from compss_train.engines.compss.configuration import write

# A login as sshd does it: the words of the command joined with blanks, in a shell.
SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
host=$1; shift
if [ "$host" = nowhere ]; then echo "ssh: cannot resolve nowhere" >&2; exit 255; fi
exec /bin/sh -c "$*"
"""


class FakeMachine:
    """A machine that has only the programs a test adds; ``bin`` is its PATH, ``home`` its
    COMPSS_HOME.
    """

    def __init__(self, folder):
        self.folder = folder
        self.bin = folder / "bin"
        self.home = folder / "COMPSs"
        self.bin.mkdir()
        (self.home / "Runtime").mkdir(parents=True)

    def add_program(self, name, text):
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def add_printing_program(self, name, *lines, code=0):
        printed = "".join(f"echo '{line}'\n" for line in lines)
        return self.add_program(name, f"#!/bin/sh\n{printed}exit {code}\n")

    def add_compss(self, suffix=None):
        """Add a complete COMPSs."""
        binding = self.home / "Bindings/python/3"
        (binding / "pycompss").mkdir(parents=True)
        (binding / f"compss{suffix or sysconfig.get_config_var('EXT_SUFFIX')}").touch()
        starter = self.home / "Runtime/scripts/system/adaptors/nio/persistent_worker.sh"
        starter.parent.mkdir(parents=True)
        starter.touch()
        self.add_printing_program("java", 'openjdk version "17.0.1"')
        self.add_printing_program("runcompss", "COMPSs version 3.3 Orchid", " ")
        self.add_program("ssh", SSH)

    def add_python(self, **changes):
        """Add a Python that answers the probe, with changes, and return its path."""
        versions = {"python": platform.python_version(), "torch": metadata.version("torch")}
        others = {
            "executable": "/bin/python-there",
            "compss_train": __version__,
            "cpus": 4,
            "gpus": 0,
            "java": True,
            "compss": True,
            "problems": {},
        }
        answer = {**versions, **others, **changes}
        return str(
            self.add_printing_program(
                "python-there", "Welcome to this machine!", json.dumps(answer)
            )
        )

    def findings(self, *nodes, **request):
        """Return what the doctor finds, by name; with nodes in COMPSs's two files."""
        if nodes:
            project, resources = write(
                self.folder / "files", nodes, python="/no/python3", install_dir=self.home
            )
            request = {"project": project, "resources": resources, **request}
        given = {
            "project": None,
            "resources": None,
            "nodes": (),
            "python": "python3",
        }
        options = {**given, **request}
        return {
            finding.name: finding for finding in examine(argparse.Namespace(**options), "compss")
        }


def states(findings, *names):
    return [findings[name].state for name in names]


def missing(findings):
    return {name for name, finding in findings.items() if finding.state == "missing"}
