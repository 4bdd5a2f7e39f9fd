"""JSON that every parser reads (RFC 8259): numbers that JSON does not have are text."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from compss_train._utils.nested import map_leaves

NOT_FINITE: Mapping[str, float] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""The texts that stand for numbers. They are what Python's ``json`` would write without quotes."""


def dumps(value: Any, default: Callable[[Any], Any] | None = None, **options: Any) -> str:
    """Return a value as JSON; ``default`` and other options are those of ``json.dumps``."""
    try:
        return json.dumps(value, allow_nan=False, default=default, **options)
    except ValueError:  # of NaN; looking at each number would take longer in all other cases
        plain = json.loads(json.dumps(value, default=default))
        return json.dumps(map_leaves(_as_text, plain), allow_nan=False, **options)


def _as_text(value: Any) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def loads(text: str | bytes) -> Any:
    """Return the value that ``dumps`` or ``json.dumps`` wrote, with numbers for their texts."""
    return map_leaves(_as_number, json.loads(text))


def _as_number(value: Any) -> Any:
    return NOT_FINITE.get(value, value) if isinstance(value, str) else value
