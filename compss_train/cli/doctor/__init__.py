"""What the compss engine needs, looked for on this machine and on the nodes, with a way to get what is missing.

A check is a function of the request that yields findings. None raises because something is missing, none waits
for ever, and none imports torch in this process, so that the answer comes quickly and even on a broken machine.
"""

from compss_train.cli.doctor.checks import CHECKS, examine
from compss_train.cli.doctor.findings import Check, Finding, Request, State, as_json, as_text, ready

__all__ = ["CHECKS", "Check", "Finding", "Request", "State", "as_json", "as_text", "examine", "ready"]
