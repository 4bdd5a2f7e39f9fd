"""A seed that fails: the fewest of its faults with which it still does, as a test to paste."""

from collections.abc import Callable, Sequence

from tests.simulation.engine import Fault


def shrunk(faults: Sequence[Fault], fails: Callable[[Sequence[Fault]], bool]) -> list[Fault]:
    """Return faults with which it fails, and no longer does if any one of them is left out (Zeller's ddmin)."""
    left, parts = list(faults), 2
    while left:
        size = -(-len(left) // parts)
        cuts = range(0, len(left), size)
        rest = next((kept for cut in cuts if fails(kept := left[:cut] + left[cut + size :])), None)
        if rest is not None:
            left, parts = rest, max(2, parts - 1)
        elif size == 1:
            break
        else:
            parts = min(len(left), 2 * parts)
    return left


def pasted(seed: int, faults: Sequence[Fault], error: BaseException) -> str:
    """Return the source of a test that fails."""
    lines = [f"        Fault({fault.kind!r}, {fault.place!r}, {fault.at}, {fault.seconds})," for fault in faults]
    given = ["    faults = [", *lines, "    ]"] if lines else ["    faults = []"]
    said = [*str(error).splitlines(), *getattr(error, "__notes__", ())] or [type(error).__name__]
    return "\n".join(
        [f"def test_seed_{seed}():", f"    # {said[-1][:100]}", *given, f"    simulate({seed}, faults)", ""]
    )
