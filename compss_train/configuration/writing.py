"""Writes the two files: the project names the nodes, and the resources say what each has."""

from __future__ import annotations

from collections.abc import Sequence
from getpass import getuser
from pathlib import Path
from xml.etree import ElementTree

from compss_train.configuration.home import presumed_home
from compss_train.configuration.node import Node

NIO_ADAPTOR = "es.bsc.compss.nio.master.NIOAdaptor"


def write(
    folder: Path, nodes: Sequence[Node], *, install_dir: Path | None = None, working_dir: Path | None = None
) -> tuple[Path, Path]:
    """Write ``project.xml`` and ``resources.xml`` into the folder (made where needed); return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    project, resources = folder / "project.xml", folder / "resources.xml"
    project.write_text(project_xml(nodes, install_dir=install_dir, working_dir=working_dir), encoding="utf-8")
    resources.write_text(resources_xml(nodes), encoding="utf-8")
    return project, resources


def project_xml(nodes: Sequence[Node], *, install_dir: Path | None = None, working_dir: Path | None = None) -> str:
    """Return the project file: the nodes, where COMPSs is installed on them, where workers keep files."""
    installed = install_dir or presumed_home()
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


def default_working_dir() -> Path:
    """Return where workers keep their files: a folder of the user's own, as several may share a machine."""
    return Path("/tmp") / f"COMPSsWorker-{getuser()}"


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
