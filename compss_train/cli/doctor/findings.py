"""The input of a check (``Request``), its output (``Finding``), and how findings are printed."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

State = Literal["ok", "note", "warning", "missing"]


@dataclass(frozen=True)
class Finding:
    """The result of one check: its name, state, what was found, and how to fix it if something is wrong.

    ``missing``: the compss engine cannot run. ``warning``: it may fail or be slow. ``note``: something optional is
    missing.
    """

    name: str
    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Request:
    """What to check besides this machine: COMPSs's two XML files, nodes, and the Python of the nodes."""

    project: Path | None = None
    resources: Path | None = None
    nodes: tuple[str, ...] = ()
    python: str = "python3"


Check = Callable[[Request], Iterable[Finding]]


def ready(findings: Iterable[Finding]) -> bool:
    """Return whether the compss engine can run: whether nothing is ``missing``."""
    return all(finding.state != "missing" for finding in findings)


def as_text(findings: Sequence[Finding]) -> str:
    """Return one line per finding, and a last line with the verdict."""
    width = max(len(finding.name) for finding in findings)
    lines = [
        f"{finding.state:8} {finding.name:{width}}  {finding.found}" + (finding.advice and f"; {finding.advice}")
        for finding in findings
    ]
    missing = [finding.name for finding in findings if finding.state == "missing"]
    verdict = (
        f"The compss engine cannot run here yet: see {', '.join(missing)}. The local engine does not need COMPSs."
        if missing
        else "The compss engine can run here."
    )
    return "\n".join([*lines, verdict])


def as_json(findings: Sequence[Finding]) -> str:
    """Return the findings as JSON: ``{"ready": true, "findings": [...]}``."""
    return json.dumps({"ready": ready(findings), "findings": [asdict(finding) for finding in findings]}, indent=2)
