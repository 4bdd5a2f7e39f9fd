"""The bits of kinds in a file, and what differs between two such files."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.same_bits.fitting import Bits

SEPARATOR = " | "


def write(path: Path, results: Mapping[str, Bits]) -> None:
    arrays = {
        f"{kind}{SEPARATOR}{name}": np.ascontiguousarray(array)
        for kind, bits in results.items()
        for name, array in bits.items()
    }
    save_file(arrays, path)


def read(path: Path) -> dict[str, Bits]:
    results: dict[str, Bits] = {}
    for name, array in load_file(path).items():
        kind, _, own = name.partition(SEPARATOR)
        results.setdefault(kind, {})[own] = array
    return results


def differences(ours: Mapping[str, Bits], theirs: Mapping[str, Bits]) -> Iterator[str]:
    """Yield a line for each kind and each array of theirs that ours lack, and for all that is not
    equal.
    """
    for kind, expected in theirs.items():
        if kind not in ours:
            yield f"{kind}: missing"
            continue
        for name in sorted({*expected, *ours[kind]}):
            if reason := _difference(ours[kind].get(name), expected.get(name)):
                yield f"{kind}: {name}: {reason}"


def _difference(ours: np.ndarray | None, theirs: np.ndarray | None) -> str | None:
    if ours is None or theirs is None:
        return "missing" if ours is None else "not in the other checkout"
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return f"{ours.dtype} {ours.shape} instead of {theirs.dtype} {theirs.shape}"
    if ours.tobytes() == theirs.tobytes():
        return None
    with np.errstate(invalid="ignore"):
        largest = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max()
    changed = int((ours != theirs).sum())
    return f"{changed} of {ours.size} numbers differ, by {largest:.3g} at most"
