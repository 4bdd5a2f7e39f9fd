"""Why COMPSs has lost a task: what the jobs that failed have printed."""

import re
import sys
from pathlib import Path

from compss_train.engines.compss import runtime
from compss_train.exceptions import WorkerLostError

_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b.*", re.MULTILINE)
"""The last line of a traceback."""


def lost_task_error() -> WorkerLostError:
    """Return the error for a value that the runtime will never have."""
    folder = Path(runtime.jvm_options().get("compss.log.dir", "")) / "jobs"
    # Only jobs that have failed leave files, and the first one made the others fail.
    outputs = sorted(folder.glob("job*.out"), key=_number_of)
    if not outputs:
        return WorkerLostError(f"COMPSs lost a task: {_of_dead_process()}")
    errors = _ERROR.findall(outputs[0].read_text(errors="replace"))
    if not errors:
        return WorkerLostError(
            f"COMPSs lost a task: {_of_dead_process()}. What it has printed is in {outputs[0]}"
        )
    text = f"COMPSs lost a task: it failed with {errors[-1]} ({outputs[0]})"
    if "ModuleNotFoundError" in errors[-1]:
        text += f". {_of_missing_module()}"
    return WorkerLostError(text)


def _number_of(output: Path) -> int:
    digits = re.search(r"\d+", output.name)
    return int(digits[0]) if digits else 0


def _of_missing_module() -> str:
    interpreter = runtime.jvm_options().get("compss.python.interpreter", "python3")
    return (
        f"Workers run {interpreter} as their node finds it: start runcompss with "
        f"--python_interpreter={sys.executable}, which must be there on all nodes; modules of your "
        "own need --pythonpath=FOLDER"
    )


def _of_dead_process() -> str:
    return (
        "its worker process died, most often because memory ran out, or because more computing "
        "units are declared than the node has cores: COMPSs binds each unit to a core, and tasks "
        "beyond the cores die. Declare fewer units (runcompss/laptop.sh --units, compss-train "
        "configure --units), or start runcompss with --cpu_affinity=disabled. compss-train doctor "
        "compares units with cores"
    )
