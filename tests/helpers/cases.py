"""Cases of tests that run always, and cases that only ``--slow`` runs."""

from itertools import product
from typing import Any

import pytest

MAKE_SLOW = {"marks": pytest.mark.slow}


def slow(*cases: Any) -> list[Any]:
    """Return cases that repeat what others test, with another engine, size or combination."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), **MAKE_SLOW) for case in cases
    ]


def each_value(*parameters: Any) -> list[Any]:
    """Return all combinations of some parameters' values, of which few run always: each value is in
    one of them.

    The longest list of values goes with those of the others in turn.
    """
    longest = max(parameters, key=len)
    cases = []
    for numbers in product(*(range(len(values)) for values in parameters)):
        lead = next(
            number for number, values in zip(numbers, parameters, strict=True) if values is longest
        )
        always = all(
            number == lead % len(values) for number, values in zip(numbers, parameters, strict=True)
        )
        values = (values[number] for number, values in zip(numbers, parameters, strict=True))
        cases.append(pytest.param(*values, **({} if always else MAKE_SLOW)))
    return cases
