"""The findings as people and as programs read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from compss_train.doctor.finding import Finding, ready


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
