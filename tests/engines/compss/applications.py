"""Configuration files of COMPSs for tests."""

import sys

from compss_train.engines.compss.configuration import WorkerNode, write
from compss_train.engines.compss.runtime import JVM_OPTIONS


def declare_nodes(monkeypatch, folder, *nodes):
    """Make this process find configuration files with these nodes, as if runcompss had started
    it.
    """
    project, resources = write(folder, [WorkerNode(*node) for node in nodes], python=sys.executable)
    options = folder / "jvm_options"
    options.write_text(
        f"-Xms1024m\n-Dcompss.project.file={project}\n-Dcompss.resources.file={resources}\n"
    )
    monkeypatch.setenv(JVM_OPTIONS, str(options))
