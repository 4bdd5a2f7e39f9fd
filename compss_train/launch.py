"""The two XML files that tell COMPSs where its workers run and what they may use there."""

from __future__ import annotations

import os
import random
import shutil
import socket
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path
from xml.etree import ElementTree

from loky import cpu_count

NIO_ADAPTOR = "es.bsc.compss.nio.master.NIOAdaptor"
DEFAULT_HOME = Path("/opt/COMPSs")
# COMPSs's master takes the first free port from 43000 to 44000: workers start above it. A worker whose port is
# taken costs half a minute before the next one is tried, and a worker listens on all addresses of its machine: each
# has ports of its own.
FIRST_PORT = 44001
PORTS = 10
LAST_PORT = 65535


@dataclass(frozen=True)
class Node:
    """One worker of COMPSs: the host that it is started on by ssh, what it may use, and its first port."""

    name: str
    units: int
    gpus: int = 0
    first_port: int = FIRST_PORT

    def __post_init__(self) -> None:
        if not self.name or self.name != self.name.strip():
            raise ValueError(f"a node needs the name of a host, not {self.name!r}")
        if self.units < 1:
            raise ValueError(f"units={self.units} for {self.name}: give at least 1, most often its physical cores")
        if self.gpus < 0:
            raise ValueError(f"gpus={self.gpus} for {self.name}: give 0 or more")
        if not 1024 <= self.first_port <= LAST_PORT - PORTS:
            raise ValueError(
                f"{self.name} would listen on port {self.first_port}; ports must lie between 1024 and {LAST_PORT}: "
                "choose another first port, or fewer nodes"
            )

    @property
    def last_port(self) -> int:
        """The last of the ports that the worker may listen on."""
        return self.first_port + PORTS - 1


def physical_cores() -> int:
    """Return the physical cores that this process may use (affinity and container limits count)."""
    with warnings.catch_warnings():
        # Where the physical cores cannot be told apart, loky warns and counts all of them.
        warnings.simplefilter("ignore")
        return int(cpu_count(only_physical_cores=True))


def compss_home() -> Path | None:
    """Return where COMPSs is installed: ``COMPSS_HOME``, or where ``runcompss`` lies; else ``None``."""
    if home := os.environ.get("COMPSS_HOME"):
        return Path(home)
    if (runcompss := shutil.which("runcompss")) is None:
        return None
    scripts = Path(runcompss).resolve().parents
    return scripts[3] if len(scripts) > 3 and (scripts[3] / "Runtime").is_dir() else None


def free_first_port(count: int) -> int:
    """Return the first of enough ports in a row for ``count`` workers here, on which nobody listens.

    The search starts anywhere: runs that start at the same time must not take the same ones, as the workers of one
    would then be asked by the coordinator of the other.
    """
    needed = count * PORTS
    for _ in range(100):
        first = random.randrange(FIRST_PORT, LAST_PORT - needed)
        if all(_is_free(port) for port in range(first, first + needed)):
            return first
    raise OSError(f"there are no {needed} free ports in a row above {FIRST_PORT}; name the first with --first-port")


def loopback_nodes(
    count: int, units: int | None = None, gpus: int = 0, first_port: int = FIRST_PORT
) -> tuple[Node, ...]:
    """Return ``count`` workers on this machine: one on localhost, more on 127.0.0.1, 127.0.0.2 and so on.

    ``units`` is what each of them may use, by default its share of the physical cores.
    """
    if not 1 <= count <= 254:
        raise ValueError(f"nodes={count}: give 1 to 254, the loopback addresses from 127.0.0.1 on")
    if gpus and count > 1:
        raise ValueError(
            f"gpus={gpus} with nodes={count}: every worker on this machine would count its GPUs from the first, "
            "so that all train on the same ones; use one node with all the GPUs"
        )
    share = max(1, physical_cores() // count) if units is None else units
    names = ["localhost"] if count == 1 else [f"127.0.0.{index}" for index in range(1, count + 1)]
    return tuple(Node(name, share, gpus, first_port + index * PORTS) for index, name in enumerate(names))


def host_nodes(
    hosts: Sequence[str], units: int | None = None, gpus: int = 0, first_port: int = FIRST_PORT
) -> tuple[Node, ...]:
    """Return one worker on each of the hosts, with the cores of this machine where ``units`` is not given."""
    if not hosts or len(set(hosts)) < len(hosts):
        raise ValueError(f"hosts={','.join(hosts)!r}: give at least one host, and each of them once")
    return tuple(Node(host, physical_cores() if units is None else units, gpus, first_port) for host in hosts)


def project_xml(nodes: Sequence[Node], *, install_dir: Path | None = None, working_dir: Path | None = None) -> str:
    """Return the project file: the nodes, where COMPSs is installed on them, where workers keep files."""
    installed = install_dir or compss_home() or DEFAULT_HOME
    working = working_dir or default_working_dir()
    root = ElementTree.Element("Project")
    ElementTree.SubElement(root, "MasterNode")
    for node in nodes:
        entry = ElementTree.SubElement(root, "ComputeNode", Name=node.name)
        _text(entry, "InstallDir", _folder(installed))
        # Of its own: a worker that ends removes the run's folder in it, which workers on one machine would share,
        # and then another one waits for ever for files of its own.
        _text(entry, "WorkingDir", _folder(working / node.name))
    return _document(root)


def resources_xml(nodes: Sequence[Node]) -> str:
    """Return the resources file: what each node has, and the ports that its worker may listen on."""
    root = ElementTree.Element("ResourcesList")
    for node in nodes:
        entry = ElementTree.SubElement(root, "ComputeNode", Name=node.name)
        _processor(entry, "MainProcessor", node.units, "CPU")
        if node.gpus:
            _processor(entry, "GPUs", node.gpus, "GPU")
        _adaptor(entry, node)
    return _document(root)


def write(
    folder: Path, nodes: Sequence[Node], *, install_dir: Path | None = None, working_dir: Path | None = None
) -> tuple[Path, Path]:
    """Write ``project.xml`` and ``resources.xml`` into the folder (made where needed); return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    project, resources = folder / "project.xml", folder / "resources.xml"
    project.write_text(project_xml(nodes, install_dir=install_dir, working_dir=working_dir), encoding="utf-8")
    resources.write_text(resources_xml(nodes), encoding="utf-8")
    return project, resources


def default_working_dir() -> Path:
    """Return where workers keep their files: a folder of the user's own, as several may share a machine."""
    return Path("/tmp") / f"COMPSsWorker-{getuser()}"


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        # As Java does: a port whose last connections are still closing is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError:
            return False
        return True


def _processor(parent: ElementTree.Element, name: str, units: int, kind: str) -> None:
    processor = ElementTree.SubElement(parent, "Processor", Name=name)
    _text(processor, "ComputingUnits", str(units))
    _text(processor, "Type", kind)


def _adaptor(parent: ElementTree.Element, node: Node) -> None:
    adaptors = ElementTree.SubElement(parent, "Adaptors")
    adaptor = ElementTree.SubElement(adaptors, "Adaptor", Name=NIO_ADAPTOR)
    ElementTree.SubElement(ElementTree.SubElement(adaptor, "SubmissionSystem"), "Interactive")
    ports = ElementTree.SubElement(adaptor, "Ports")
    _text(ports, "MinPort", str(node.first_port))
    _text(ports, "MaxPort", str(node.last_port))


def _text(parent: ElementTree.Element, tag: str, text: str) -> None:
    ElementTree.SubElement(parent, tag).text = text


def _folder(path: Path) -> str:
    # COMPSs joins file names to these without a slash.
    return f"{path.absolute()}/"


def _document(root: ElementTree.Element) -> str:
    ElementTree.indent(root, "    ")
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n{body}\n'
