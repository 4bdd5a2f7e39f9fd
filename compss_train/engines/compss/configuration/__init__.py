"""COMPSs's two configuration files, which declare its worker nodes and their resources: writing and reading.

Imports neither torch nor another room of compss_train, so that the doctor can use it.
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
