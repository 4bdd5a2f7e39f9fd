"""The program that looks at a node from its own Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from compss_train.doctor.files import install_dir
from compss_train.doctor.finding import Request
from compss_train.doctor.ssh import ask_python
from compss_train.doctor.tools import Answer

PROBE_SECONDS = 90.0  # importing torch from a cluster's shared disk for the first time is slow

# The trainer imports whatever compss_train depends on; the bare package would say nothing of what is missing.
PROBE = """
import json, os, platform, resource, shutil, sys, tempfile
sys.path.append({package_root!r})
answer = {{"python": platform.python_version(), "cpus": os.cpu_count() or 1, "problems": {{}}}}
answer["open_files"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
for name, module in (("torch", "torch"), ("compss_train", "compss_train.trainer")):
    try:
        answer[name] = str(__import__(module).__version__)
    except BaseException as error:
        answer[name] = None
        answer["problems"][name] = f"{{type(error).__name__}}: {{error}}"
answer["gpus"] = sys.modules["torch"].cuda.device_count() if answer["torch"] else 0
home = os.environ.get("JAVA_HOME")
answer["java"] = os.path.exists(home + "/bin/java") if home else shutil.which("java") is not None
answer["compss"] = os.path.exists({starter!r})
for folder in ("/tmp", os.path.expanduser("~")):
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        answer["problems"][folder] = str(error)
print(json.dumps(answer))
"""


def probe(request: Request, node: str) -> dict[str, Any] | Answer:
    """Return what the program saw on the node, or where there is no Python to run it, what came instead."""
    answer = ask_python(node, request.python, program(request, node), PROBE_SECONDS)
    try:
        seen: dict[str, Any] = json.loads(answer.out.splitlines()[-1])
    except (IndexError, ValueError):
        return answer
    return seen


def program(request: Request, node: str) -> str:
    """Return the program for a node."""
    starter = install_dir(request, node) / "Runtime/scripts/system/adaptors/nio/persistent_worker.sh"
    return PROBE.format(package_root=str(Path(__file__).parents[2]), starter=str(starter))
