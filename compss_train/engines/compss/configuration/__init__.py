"""COMPSs's two configuration files, which tell it where its workers run and what they may use: made, written, read.

Imports nothing else of compss_train, so that commands, engines and tests may all use it.
"""

from compss_train.engines.compss.configuration.files import (
    UNREADABLE,
    DeclaredNode,
    default_working_dir,
    project_xml,
    read_nodes,
    read_project,
    read_resources,
    resources_xml,
    write,
)
from compss_train.engines.compss.configuration.nodes import (
    DEFAULT_HOME,
    FIRST_PORT,
    LAST_PORT,
    PORTS,
    Node,
    compss_home,
    free_first_port,
    host_nodes,
    loopback_nodes,
    physical_cores,
    presumed_home,
)

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
