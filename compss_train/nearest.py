"""The nearest of some names: what somebody who mistyped one may have meant."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches


def nearest(name: str, accepted: Collection[str]) -> str:
    """Return the question whether the most similar name was meant, nothing where none is similar."""
    by_lower = {key.lower(): key for key in accepted}
    near = get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""
