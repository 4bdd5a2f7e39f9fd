import os
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from compss_train.engines.compss.configuration import (
    DEFAULT_HOME,
    FIRST_PORT,
    loopback_nodes,
    project_xml,
    resources_xml,
    write,
)

HOME = Path(os.environ.get("COMPSS_HOME", DEFAULT_HOME))


def entries(xml):
    return ElementTree.fromstring(xml).findall("ComputeNode")


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
    assert int(adaptor.findtext("Ports/MinPort")) == FIRST_PORT
    (entry,) = entries(resources_xml(loopback_nodes(1, units=6)))
    assert len(entry.findall("Processor")) == 1


@pytest.mark.skipif(
    not (HOME / "Runtime").is_dir() or not shutil.which("xmllint"), reason="needs COMPSs's schemas and xmllint"
)
def test_files_agree_with_the_schemas(tmp_path):
    schemas = HOME / "Runtime/configuration/xml"
    for nodes in (loopback_nodes(3), loopback_nodes(1, gpus=2)):
        for file, schema in zip(write(tmp_path, nodes), ("projects/project", "resources/resources"), strict=True):
            command = ["xmllint", "--noout", "--schema", schemas / f"{schema}_schema.xsd", file]
            subprocess.run(command, check=True, capture_output=True)
