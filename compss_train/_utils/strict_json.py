"""JSON that every parser reads (RFC 8259): numbers that JSON does not have are text."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

NOT_FINITE: Mapping[str, float] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""The texts that stand for numbers. They are what Python's ``json`` would write without quotes."""


def dumps(value: Any, default: Callable[[Any], Any] | None = None, **options: Any) -> str:
    """Return a value as JSON; ``default`` and other options are those of ``json.dumps``."""
    try:
        return json.dumps(value, allow_nan=False, default=default, **options)
    except ValueError:  # of NaN; looking at each number would take longer in all other cases
        plain = json.loads(json.dumps(value, default=default))
        return json.dumps(_mapped(plain, _as_text), allow_nan=False, **options)


def _mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(item, leaf) for key, item in value.items()}
    return [_mapped(item, leaf) for item in value] if isinstance(value, list) else leaf(value)


def _as_text(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return next(text for text, number in NOT_FINITE.items() if number == value or math.isnan(value))
    return value


def loads(text: str | bytes) -> Any:
    """Return the value that ``dumps`` wrote, with numbers for their texts; also what ``json.dumps`` wrote."""
    return _mapped(json.loads(text), lambda leaf: NOT_FINITE.get(leaf, leaf) if isinstance(leaf, str) else leaf)
