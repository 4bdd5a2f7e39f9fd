"""Tests, in whose processes torchmetrics does without packages that take seconds to import."""

from lightning_utilities.core.imports import RequirementCache

check = RequirementCache._check_available


def check_others(requirement: RequirementCache) -> None:
    """Say that what torchmetrics imports for metrics of texts and for pictures is not there, installed or not."""
    if str(requirement.requirement).startswith(("transformers", "matplotlib")):
        requirement.available, requirement.message = False, "not imported by tests"
    check(requirement)


RequirementCache._check_available = check_others
