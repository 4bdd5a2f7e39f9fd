"""Tests, in whose processes torchmetrics does without packages that take seconds to import."""

from lightning_utilities.core.imports import RequirementCache

is_met = RequirementCache.__bool__


def is_met_or_needed(requirement: RequirementCache) -> bool:
    """Say that what torchmetrics imports for metrics of texts and for pictures is not there,
    installed or not.
    """
    return not str(requirement.requirement).startswith(("transformers", "matplotlib")) and is_met(
        requirement
    )


RequirementCache.__bool__ = is_met_or_needed
