"""HTML and SVG as text that is escaped unless it was made here."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable
from typing import Any

_VOID = {"meta", "link", "br"}


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element; children and attributes that are no ``Markup`` are escaped.

    ``class_`` and ``data_x`` are the attributes ``class`` and ``data-x``; those that are ``None`` are left out.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{joined(children)}</{name}>")


def joined(children: Iterable[object]) -> Markup:
    """Return one after the other, escaped unless they are ``Markup``; lists and tuples are gone into."""
    return Markup("".join(_text(child) for child in children if child is not None))


def _text(child: object) -> str:
    if isinstance(child, Markup):
        return child
    if isinstance(child, list | tuple):
        return joined(child)
    return html.escape(str(child))


def data(value: Any) -> Markup:
    """Return an element that holds a value for the script, as JSON: numbers with 6 digits, ``null`` for NaN."""
    text = json.dumps(_rounded(value), separators=(",", ":")).replace("<", "\\u003c")
    return Markup(f'<script type="application/json">{text}</script>')


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
