"""The worker nodes of COMPSs, and the two configuration files that describe them.

The project names the nodes, with the folders of COMPSs on them; the resources declare what each
node has. Imports no torch, so that the doctor can use it.
"""

import os
import random
import shlex
import shutil
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path
from xml.etree import ElementTree

from compss_train.engines.nodes import Node, physical_cores

NIO_ADAPTOR = "es.bsc.compss.nio.master.NIOAdaptor"
"""The class by which COMPSs's master reaches its workers."""

FIRST_PORT = 44001
"""The first port of a worker; COMPSs's master uses the first free one from 43000 to 44000."""

PORTS = 10
"""Ports of a worker.

If one is in use, COMPSs tries the next one after half a minute. A worker listens on all addresses
of its machine, so that each worker needs different ports.
"""

LAST_PORT = 65535

LOWEST_PORT = 10_000
"""Registered services use lower ports."""
LOWEST_OUTGOING_PORT = 32768
"""The lowest port of outgoing connections on Linux, unless an administrator has changed it."""


@dataclass(frozen=True, slots=True)
class WorkerNode(Node):
    """A worker of COMPSs: its host, computing units, GPUs and first port.

    COMPSs starts it on the host by ssh.

    Raises ``ValueError`` for an empty name, less than 1 unit, a negative number of GPUs, and ports
    out of range.
    """

    first_port: int = FIRST_PORT

    def __post_init__(self) -> None:
        if not self.name or self.name != self.name.strip():
            raise ValueError(f"a node needs the name of a host, got {self.name!r}")
        if self.cpus < 1:
            raise ValueError(
                f"units={self.cpus} for {self.name}: give at least 1, usually the number of "
                "physical cores"
            )
        if self.gpus < 0:
            raise ValueError(f"gpus={self.gpus} for {self.name}: give 0 or more")
        if not 1024 <= self.first_port <= LAST_PORT - PORTS:
            raise ValueError(
                f"{self.name} would listen on port {self.first_port}; ports must be between 1024 "
                f"and {LAST_PORT}: choose another first port, or fewer nodes"
            )

    @property
    def last_port(self) -> int:
        """The last port that the worker may listen on."""
        return self.first_port + PORTS - 1


def free_first_port(count: int) -> int:
    """Return the first of enough consecutive free ports for ``count`` processes of COMPSs here.

    The search starts at a random port: two runs that start at the same time must not use the same
    ports, since the coordinator of one would then contact the workers of the other. Ports in the
    range of outgoing connections and above are excluded, since any of them may be in use by the
    time the workers start. Raises ``OSError`` if too few ports are free.
    """
    needed = count * PORTS
    candidates = range(LOWEST_PORT, LOWEST_OUTGOING_PORT - needed + 1)
    for _ in range(100):
        first = random.choice(candidates)
        if all(is_free(port) for port in range(first, first + needed)):
            return first
    raise OSError(f"found no {needed} consecutive free ports; give the first one with --first-port")


def is_free(port: int) -> bool:
    """Return whether a program of this machine could listen at a port."""
    with socket.socket() as listener:
        # As in Java, a port counts as free while its last connections are still closing.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError:
            return False
        return True


def loopback_nodes(
    count: int, units: int | None = None, gpus: int = 0, first_port: int = FIRST_PORT
) -> tuple[WorkerNode, ...]:
    """Return ``count`` workers on this machine.

    One is on localhost; several are on 127.0.0.1, 127.0.0.2 and so on.

    ``units`` is the number of computing units of each, by default its share of the physical cores.
    Raises ``ValueError`` for more than 254 workers, and for GPUs with more than one worker.
    """
    if not 1 <= count <= 254:
        raise ValueError(
            f"nodes={count}: give 1 to 254, the number of loopback addresses from 127.0.0.1"
        )
    if gpus and count > 1:
        raise ValueError(
            f"gpus={gpus} with nodes={count}: all workers on this machine would use the same "
            "GPUs, since each counts them from the first; use one node with all GPUs"
        )
    share = max(1, physical_cores() // count) if units is None else units
    names = ["localhost"] if count == 1 else [f"127.0.0.{index}" for index in range(1, count + 1)]
    return tuple(
        WorkerNode(name, share, gpus, first_port + index * PORTS)
        for index, name in enumerate(names)
    )


def host_nodes(
    hosts: Sequence[str], units: int | None = None, gpus: int = 0, first_port: int = FIRST_PORT
) -> tuple[WorkerNode, ...]:
    """Return one worker per host.

    By default it has as many units as this machine has physical cores.
    """
    if not hosts or len(set(hosts)) < len(hosts):
        raise ValueError(f"hosts={','.join(hosts)!r}: give at least one host, and each host once")
    return tuple(
        WorkerNode(host, physical_cores() if units is None else units, gpus, first_port)
        for host in hosts
    )


DEFAULT_HOME = Path("/opt/COMPSs")


def compss_home() -> Path | None:
    """Return the folder of COMPSs, by ``COMPSS_HOME`` or by ``runcompss``; ``None`` without it."""
    home = os.environ.get("COMPSS_HOME")
    if home:
        return Path(home)
    runcompss = shutil.which("runcompss")
    if runcompss is None:
        return None
    scripts = Path(runcompss).resolve().parents
    return scripts[3] if len(scripts) > 3 and (scripts[3] / "Runtime").is_dir() else None


def presumed_home() -> Path:
    """Return the folder that COMPSs is installed in, or its default."""
    return compss_home() or DEFAULT_HOME


ENVIRONMENT_SCRIPT = "environment.sh"
"""The file next to the project file that its nodes source before their worker starts."""


def write(
    folder: Path,
    nodes: Sequence[WorkerNode],
    *,
    python: str,
    install_dir: Path | None = None,
    working_dir: Path | None = None,
) -> tuple[Path, Path]:
    """Write ``project.xml`` and ``resources.xml`` into a folder; return both paths.

    Workers run ``python3`` as their node finds it. So a script that the project file names puts the
    folder of the interpreter ``python`` first on the ``PATH`` of the nodes.
    The folder is created if necessary.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = folder.absolute() / ENVIRONMENT_SCRIPT
    project = folder / "project.xml"
    resources = folder / "resources.xml"
    environment.write_text(environment_script(python), encoding="utf-8")
    project.write_text(
        project_xml(
            nodes, environment=environment, install_dir=install_dir, working_dir=working_dir
        ),
        encoding="utf-8",
    )
    resources.write_text(resources_xml(nodes), encoding="utf-8")
    return project, resources


def environment_script(python: str) -> str:
    """Return the script by which nodes find an interpreter, given by an absolute path."""
    return (
        "# Nodes source this before their worker starts; runcompss ignores --env_script.\n"
        f"export PATH={shlex.quote(str(Path(python).parent))}:$PATH\n"
    )


def project_xml(
    nodes: Sequence[WorkerNode],
    *,
    environment: Path,
    install_dir: Path | None = None,
    working_dir: Path | None = None,
) -> str:
    """Return the project file: the nodes, with the folders of COMPSs and of workers' files on them.

    ``environment`` is the script that each node sources.
    By default workers' files are in a folder with the user's name, since users may share a machine.
    """
    installed = install_dir or presumed_home()
    working = working_dir or Path("/tmp") / f"COMPSsWorker-{getuser()}"
    root = ElementTree.Element("Project")
    _add(root, "MasterNode")
    for node in nodes:
        entry = _add(root, "ComputeNode", Name=node.name)
        # COMPSs appends file names without a slash.
        _add(entry, "InstallDir", f"{installed.absolute()}/")
        # One folder per node: a worker that ends removes the run's folder. If workers on one
        # machine shared it, the others would wait for their files forever.
        _add(entry, "WorkingDir", f"{(working / node.name).absolute()}/")
        # COMPSs 3.3 reads the schema's PythonInterpreter, but does not use it.
        _add(_add(entry, "Application"), "EnvironmentScript", str(environment))
    return _document(root)


def resources_xml(nodes: Sequence[WorkerNode]) -> str:
    """Return the resources file: the units, GPUs and ports of each node."""
    root = ElementTree.Element("ResourcesList")
    for node in nodes:
        entry = _add(root, "ComputeNode", Name=node.name)
        for name, units, kind in (("MainProcessor", node.cpus, "CPU"), ("GPUs", node.gpus, "GPU")):
            if units:
                processor = _add(entry, "Processor", Name=name)
                _add(processor, "ComputingUnits", str(units))
                _add(processor, "Type", kind)
        adaptor = _add(_add(entry, "Adaptors"), "Adaptor", Name=NIO_ADAPTOR)
        _add(_add(adaptor, "SubmissionSystem"), "Interactive")
        ports = _add(adaptor, "Ports")
        _add(ports, "MinPort", str(node.first_port))
        _add(ports, "MaxPort", str(node.last_port))
    return _document(root)


def _add(
    parent: ElementTree.Element, tag: str, text: str | None = None, **attributes: str
) -> ElementTree.Element:
    element = ElementTree.SubElement(parent, tag, attributes)
    element.text = text
    return element


def _document(root: ElementTree.Element) -> str:
    ElementTree.indent(root, "    ")
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n{body}\n'


@dataclass(frozen=True, slots=True)
class Installation:
    """What a project file says of COMPSs on a node; ``None`` for what it does not say."""

    folder: Path | None = None
    """The folder of COMPSs."""
    environment: Path | None = None
    """The script that is sourced before the node's worker starts."""


UNREADABLE = (OSError, ElementTree.ParseError)
"""Exceptions of reading a file that is missing or is not XML."""


def read_nodes(project: Path, resources: Path) -> list[Node]:
    """Return the nodes that COMPSs starts workers on: those in both files."""
    names = read_project(project)
    return [node for node in read_resources(resources).values() if node.name in names]


def read_project(path: Path) -> dict[str, Installation]:
    """Return the nodes of a project file by name, with what it says of COMPSs on them."""
    return {
        entry.get("Name", ""): Installation(
            folder=_path_in(entry, "{*}InstallDir"),
            environment=_path_in(entry, "{*}Application/{*}EnvironmentScript"),
        )
        for entry in _entries(path)
    }


def _path_in(entry: ElementTree.Element, tag: str) -> Path | None:
    text = entry.findtext(tag)
    return Path(text) if text else None


def read_resources(path: Path) -> dict[str, Node]:
    """Return the nodes of a resources file by name; invalid numbers count as 0."""
    nodes = {}
    for entry in _entries(path):
        units: Counter[str] = Counter()
        for processor in entry.findall("{*}Processor"):
            kind = processor.findtext("{*}Type", "").strip().upper() or "CPU"
            number = processor.findtext("{*}ComputingUnits", "").strip()
            if number.isdecimal():
                units[kind] += int(number)
        name = entry.get("Name", "")
        nodes[name] = Node(name, units["CPU"], units["GPU"])
    return nodes


def read_ports(path: Path) -> dict[str, range]:
    """Return the ports of a resources file by node; those of a node that names none are empty."""
    ports = {}
    for entry in _entries(path):
        first, last = (
            entry.findtext(f"{{*}}Adaptors/{{*}}Adaptor/{{*}}Ports/{{*}}{name}", "").strip()
            for name in ("MinPort", "MaxPort")
        )
        declared = first.isdecimal() and last.isdecimal()
        ports[entry.get("Name", "")] = range(int(first), int(last) + 1) if declared else range(0)
    return ports


def _entries(path: Path) -> list[ElementTree.Element]:
    return ElementTree.parse(path).getroot().findall("{*}ComputeNode")
