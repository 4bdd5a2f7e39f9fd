"""COMPSs's two configuration files: the project names the worker nodes, the resources declare what each has.

Imports no torch, so that the doctor can use it.
"""

from collections.abc import Iterator, Sequence
from getpass import getuser
from pathlib import Path
from xml.etree import ElementTree

from compss_train.engines.compss.worker_nodes import WorkerNode, presumed_home
from compss_train.engines.nodes import Node

NIO_ADAPTOR = "es.bsc.compss.nio.master.NIOAdaptor"


def write(
    folder: Path, nodes: Sequence[WorkerNode], *, install_dir: Path | None = None, working_dir: Path | None = None
) -> tuple[Path, Path]:
    """Write ``project.xml`` and ``resources.xml`` into a folder, created if necessary; return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    project, resources = folder / "project.xml", folder / "resources.xml"
    project.write_text(project_xml(nodes, install_dir=install_dir, working_dir=working_dir), encoding="utf-8")
    resources.write_text(resources_xml(nodes), encoding="utf-8")
    return project, resources


def project_xml(
    nodes: Sequence[WorkerNode], *, install_dir: Path | None = None, working_dir: Path | None = None
) -> str:
    """Return the project file: the nodes, and the folders of COMPSs and of the workers' files on them."""
    installed = install_dir or presumed_home()
    working = working_dir or default_working_dir()
    root = ElementTree.Element("Project")
    ElementTree.SubElement(root, "MasterNode")
    for node in nodes:
        entry = ElementTree.SubElement(root, "ComputeNode", Name=node.name)
        _add_text(entry, "InstallDir", _folder(installed))
        # One folder per node: a worker that ends removes the run's folder. If workers on one machine shared it,
        # the others would wait for their files for ever.
        _add_text(entry, "WorkingDir", _folder(working / node.name))
    return _document(root)


def resources_xml(nodes: Sequence[WorkerNode]) -> str:
    """Return the resources file: the units, GPUs and ports of each node."""
    root = ElementTree.Element("ResourcesList")
    for node in nodes:
        entry = ElementTree.SubElement(root, "ComputeNode", Name=node.name)
        _processor(entry, "MainProcessor", node.cpus, "CPU")
        if node.gpus:
            _processor(entry, "GPUs", node.gpus, "GPU")
        _adaptor(entry, node)
    return _document(root)


def default_working_dir() -> Path:
    """Return the default folder for workers' files, with the user's name, since users may share a machine."""
    return Path("/tmp") / f"COMPSsWorker-{getuser()}"


def _processor(parent: ElementTree.Element, name: str, units: int, kind: str) -> None:
    processor = ElementTree.SubElement(parent, "Processor", Name=name)
    _add_text(processor, "ComputingUnits", str(units))
    _add_text(processor, "Type", kind)


def _adaptor(parent: ElementTree.Element, node: WorkerNode) -> None:
    adaptors = ElementTree.SubElement(parent, "Adaptors")
    adaptor = ElementTree.SubElement(adaptors, "Adaptor", Name=NIO_ADAPTOR)
    ElementTree.SubElement(ElementTree.SubElement(adaptor, "SubmissionSystem"), "Interactive")
    ports = ElementTree.SubElement(adaptor, "Ports")
    _add_text(ports, "MinPort", str(node.first_port))
    _add_text(ports, "MaxPort", str(node.last_port))


def _add_text(parent: ElementTree.Element, tag: str, text: str) -> None:
    ElementTree.SubElement(parent, tag).text = text


def _folder(path: Path) -> str:
    # COMPSs appends file names without a slash.
    return f"{path.absolute()}/"


def _document(root: ElementTree.Element) -> str:
    ElementTree.indent(root, "    ")
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n{body}\n'


UNREADABLE = (OSError, ElementTree.ParseError)
"""Exceptions of reading a file that is missing or is not XML."""


def read_nodes(project: Path, resources: Path) -> list[Node]:
    """Return the nodes that COMPSs starts workers on: those in both files."""
    names = read_project(project)
    return [node for node in read_resources(resources).values() if node.name in names]


def read_project(path: Path) -> dict[str, Path | None]:
    """Return the nodes of a project file, each with the folder that COMPSs is installed in there, if given."""
    folders = {name: entry.findtext("{*}InstallDir") for name, entry in _entries(path)}
    return {name: Path(folder) if folder else None for name, folder in folders.items()}


def read_resources(path: Path) -> dict[str, Node]:
    """Return the nodes of a resources file by name; invalid numbers count as 0."""
    return {name: Node(name, _units(entry, "CPU"), _units(entry, "GPU")) for name, entry in _entries(path)}


def _entries(path: Path) -> Iterator[tuple[str, ElementTree.Element]]:
    for entry in ElementTree.parse(path).getroot().findall("{*}ComputeNode"):
        yield entry.get("Name", ""), entry


def _units(entry: ElementTree.Element, kind: str) -> int:
    processors = [item for item in entry.findall("{*}Processor") if _text(item, "Type", "CPU").upper() == kind]
    numbers = [_text(item, "ComputingUnits", "0") for item in processors]
    return sum(int(number) for number in numbers if number.isdecimal())


def _text(element: ElementTree.Element, tag: str, default: str) -> str:
    return (element.findtext(f"{{*}}{tag}") or "").strip() or default
