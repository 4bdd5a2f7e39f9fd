"""Logs into nodes as COMPSs does to start its workers."""

from __future__ import annotations

import shlex

from compss_train.doctor.finding import Finding
from compss_train.doctor.tools import Answer, ask

SSH_SECONDS = 10.0  # above ssh's own 5 for the connection

# As COMPSs itself calls ssh, but for the list of known hosts, which a look should leave as it is.
SSH = [
    "ssh",
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=5"),
    *("-o", "StrictHostKeyChecking=no"),
    *("-o", "UserKnownHostsFile=/dev/null"),
    *("-o", "LogLevel=ERROR"),
]


def look_for_ssh(node: str) -> Finding:
    """Look whether a login needs no password."""
    answer = ask([*SSH, node, "true"], SSH_SECONDS)
    if answer.code == 0:
        return Finding(f"ssh to {node}", "ok", "without a password")
    advice = f"COMPSs starts its workers by ssh: run an ssh server there, ssh-keygen here, then ssh-copy-id {node}"
    return Finding(f"ssh to {node}", "missing", answer.first_line, advice)


def ask_python(node: str, python: str, program: str, seconds: float) -> Answer:
    """Run a program in the Python of a node, which gets it as its input: nothing to quote, nothing to copy."""
    # A word of its own on the remote command line, whatever is in it: ssh joins words with blanks.
    return ask([*SSH, node, "exec", shlex.quote(python), "-"], seconds, program)
