"""COMPSs's two configuration files, which tell it where its workers run and what they may use: made, written, read.

Imports nothing else of compss_train, so that commands, engines and tests may all use it.
"""

from compss_train.configuration.home import DEFAULT_HOME, compss_home, presumed_home
from compss_train.configuration.node import Node
from compss_train.configuration.ports import FIRST_PORT, LAST_PORT, PORTS, free_first_port
from compss_train.configuration.reading import UNREADABLE, DeclaredNode, read_nodes, read_project, read_resources
from compss_train.configuration.workers import host_nodes, loopback_nodes, physical_cores
from compss_train.configuration.writing import default_working_dir, project_xml, resources_xml, write

__all__ = [
    "DEFAULT_HOME",
    "FIRST_PORT",
    "LAST_PORT",
    "PORTS",
    "UNREADABLE",
    "DeclaredNode",
    "Node",
    "compss_home",
    "default_working_dir",
    "free_first_port",
    "host_nodes",
    "loopback_nodes",
    "physical_cores",
    "presumed_home",
    "project_xml",
    "read_nodes",
    "read_project",
    "read_resources",
    "resources_xml",
    "write",
]
