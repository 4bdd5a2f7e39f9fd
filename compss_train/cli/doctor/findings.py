"""What a check is asked, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

State = Literal["ok", "note", "warning", "missing"]


@dataclass(frozen=True)
class Finding:
    """What was looked for, how it stands, what was found, and where something is wrong, how to put it right.

    ``missing`` means that the compss engine cannot run; a ``warning`` that it may fail or be slow; a ``note``
    that something optional is not there.
    """

    name: str
    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Request:
    """What to examine besides this machine: COMPSs's two files, nodes, and the Python that they are to run."""

    project: Path | None = None
    resources: Path | None = None
    nodes: tuple[str, ...] = ()
    python: str = "python3"


Check = Callable[[Request], Iterable[Finding]]


def ready(findings: Iterable[Finding]) -> bool:
    """Return whether the compss engine could run: whether nothing is missing."""
    return all(finding.state != "missing" for finding in findings)


def as_text(findings: Sequence[Finding]) -> str:
    """Return a line for each finding, and one for all."""
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
