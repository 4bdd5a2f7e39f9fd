"""``compss-train doctor`` and ``configure``: check and configure what the compss engine needs, here and on nodes.

A check yields findings, with advice for what is missing. It never raises because something is missing, never blocks
beyond a timeout, and never imports torch in this process: it is fast and works on a broken installation. Here are
the commands and the checks of this machine.
"""

import argparse
import json
import os
import platform
import re
import shutil
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib import util
from pathlib import Path

from compss_train.cli.doctor import nodes
from compss_train.cli.doctor.nodes import Finding, Request, installed_version, run_program
from compss_train.engines.compss import configuration

COMPSS_DOCS = "https://compss-doc.readthedocs.io"
JAVA_ADVICE = "install a JDK (Debian: apt install default-jdk) and set JAVA_HOME to its folder"


def doctor(options: argparse.Namespace) -> int:
    """Print the findings; return 1 if anything is missing."""
    findings = examine(Request(options.project, options.resources, options.nodes, options.python))
    ready = all(finding.state != "missing" for finding in findings)
    if options.json:
        print(json.dumps({"ready": ready, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        print(as_text(findings))
    return 0 if ready else 1


def configure(options: argparse.Namespace) -> int:
    """Write the two files and print the workers in them."""
    if options.hosts is not None:
        first_port = options.first_port or configuration.FIRST_PORT
        workers = configuration.host_nodes(options.hosts, options.units, options.gpus, first_port)
    else:
        # One more range of ports, after those of the workers, for the coordinator.
        first_port = options.first_port or configuration.free_first_port(min(max(1, options.nodes), 254) + 1)
        workers = configuration.loopback_nodes(options.nodes, options.units, options.gpus, first_port)
    configuration.write(options.folder, workers, install_dir=options.install_dir, working_dir=options.working_dir)
    for node in workers:
        print(f"{node.name}: {node.cpus} CPU units, {node.gpus} GPUs, ports {node.first_port} to {node.last_port}")
    print(f"project.xml and resources.xml are in {options.folder.absolute()}")
    return 0


def examine(request: Request) -> list[Finding]:
    """Run all checks and return their findings."""
    here = [check_packages(), check_pycompss(), check_compss_home(), check_java(), check_runcompss()]
    there = [nodes.check_files(request), nodes.check_resources(request), nodes.check_nodes(request)]
    return [finding for check in (*here, *there) for finding in check]


def as_text(findings: Sequence[Finding]) -> str:
    """Return one line per finding, and a last line with the verdict."""
    width = max(len(finding.name) for finding in findings)
    lines = [
        f"{finding.state:8} {finding.name:{width}}  {finding.found}" + (finding.advice and f"; {finding.advice}")
        for finding in findings
    ]
    if missing := [finding.name for finding in findings if finding.state == "missing"]:
        see = f"see {', '.join(missing)}. The local engine does not need COMPSs."
        return "\n".join([*lines, f"The compss engine cannot run here yet: {see}"])
    return "\n".join([*lines, "The compss engine can run here."])


def check_packages() -> Iterator[Finding]:
    """Report the version of Python, and check that torch and numpy are installed."""
    yield Finding("Python", "ok", platform.python_version())
    for name in ("torch", "numpy"):
        if version := installed_version(name):
            yield Finding(name, "ok", version)
        else:
            yield Finding(name, "missing", "not installed", f"pip install {name}")


def check_pycompss() -> Iterator[Finding]:
    """Look for pycompss where Python finds it, or where runcompss will: in COMPSs's own folder.

    Its compiled extension fits a single version of Python: a common cause of failures.
    """
    spec, folder = util.find_spec("pycompss"), configuration.presumed_home() / "Bindings/python/3"
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent.parent
    found = f"{installed_version('pycompss') or 'the binding'} in {folder}"
    extensions, suffix = [path.name for path in folder.glob("compss*.so")], sysconfig.get_config_var("EXT_SUFFIX")
    if not (folder / "pycompss").is_dir():
        advice = f"it comes with COMPSs, only the compss engine needs it: {COMPSS_DOCS}"
        yield Finding("pycompss", "missing", "not importable", advice)
    elif extensions and not any(name.endswith((suffix, ".abi3.so")) for name in extensions):
        built = f"{found}, compiled as {extensions[0]}"
        yield Finding("pycompss", "missing", built, f"use that Python, or build COMPSs for {suffix}")
    else:
        yield Finding("pycompss", "ok", found)


def check_compss_home() -> Iterator[Finding]:
    """Look for the folder that COMPSs is installed in."""
    home = configuration.compss_home()
    advice = f"export COMPSS_HOME={configuration.DEFAULT_HOME}, or the folder where COMPSs is installed"
    if home is None:
        yield Finding("COMPSS_HOME", "missing", "not set", advice)
    elif not (home / "Runtime").is_dir():
        yield Finding("COMPSS_HOME", "missing", f"{home}, which has no Runtime folder", advice)
    else:
        yield Finding("COMPSS_HOME", "ok", str(home) if "COMPSS_HOME" in os.environ else f"not set, but {home}")


def check_java() -> Iterator[Finding]:
    """Look for Java as COMPSs does: in ``JAVA_HOME``, with its library, or on the PATH."""
    home, java = os.environ.get("JAVA_HOME"), shutil.which("java")
    if not home:
        yield Finding("JAVA_HOME", "warning", "not set", "set it to a JDK, whose libjvm.so COMPSs loads")
    else:
        paths = [f"{home}/jre/bin/java", f"{home}/bin/java"]
        java = next((path for path in paths if os.path.isfile(path)), None)
        libraries = [path for folder in ("jre/lib", "lib") for path in Path(home).glob(f"{folder}/**/libjvm.*")]
        if java and libraries:
            yield Finding("JAVA_HOME", "ok", home)
        else:
            yield Finding("JAVA_HOME", "missing", f"{home}, which has no bin/java with a libjvm.so", JAVA_ADVICE)
    result = run_program([java or "java", "-version"])
    if result.code == 0:
        yield Finding("java", "ok", result.first_line)
    else:
        yield Finding("java", "missing", result.first_line, JAVA_ADVICE)


def check_runcompss() -> Iterable[Finding]:
    """Look for runcompss on the PATH and ask for its version, which it prints only if its own setup works."""
    path = shutil.which("runcompss")
    if path is None:
        scripts = configuration.presumed_home() / "Runtime/scripts/user"
        advice = f'export PATH="{scripts}:$PATH"' if scripts.is_dir() else f"install COMPSs: {COMPSS_DOCS}"
        return [Finding("runcompss", "missing", "not on the PATH", advice)]
    result = run_program([path, "--version"])
    version = re.search(r"version\s+(\d\S*)", result.output)
    if result.code == 0 and version:
        return [Finding("runcompss", "ok", f"{version[1]} at {path}")]
    return [Finding("runcompss", "missing", f"{path}: {result.first_line}", "runcompss --version must work")]
