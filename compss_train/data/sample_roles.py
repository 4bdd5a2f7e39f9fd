"""``Roles``: which parts of a sample are x and y."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from compss_train._utils.nested import is_sequence
from compss_train.data.values import holds_numbers

Key: TypeAlias = str | int
"""The key of a part of a sample: a name in a dict, or an index in a tuple."""


Keys: TypeAlias = Key | Sequence[Key]


TARGETS = ("y", "label", "labels", "target", "targets")
"""Names that are recognized as targets."""


@dataclass(frozen=True)
class Roles:
    """Which parts of a sample, or of a batch, are x and y.

    Several names give a dict of these parts, several indices a tuple. Without keys, a pair is (x,
    y); in a dict, ``TARGETS`` names the targets, and x is ``"x"``, or else all other parts.
    """

    x: Keys | None = None
    y: Keys | None = None

    def split(self, sample: Any, *, collated: bool = False) -> tuple[Any, Any]:
        """Return x and y; y is ``None`` if there are no targets.

        With ``collated`` it is a batch that the data set's function has made. Raises
        ``ValueError`` for keys that a sample does not have, ``TypeError`` for a tuple that is not a
        pair.
        """
        x = self.x
        y = self.y
        if x is None and y is None:
            if isinstance(sample, Mapping):
                x = "x" if "x" in sample else None
                y = next((name for name in TARGETS if name in sample), None)
            elif is_sequence(sample) and (isinstance(sample, tuple) or not holds_numbers(sample)):
                if len(sample) > 2:
                    kind = "batch that collate_fn makes" if collated else "sample"
                    collate = "collate=collate_fn, " if collated else ""
                    raise TypeError(
                        f"a {kind} is a {type(sample).__name__} of {len(sample)} parts; say "
                        f"which are x and y, as in Samples(dataset, {collate}"
                        f"x={(*range(len(sample) - 1),)}, y={len(sample) - 1})"
                    )
                x = 0
                y = 1 if len(sample) == 2 else None
            else:
                return sample, None
        x_part = _picked(sample, _keys_besides(y, sample) if x is None else x)
        return x_part, None if y is None else _picked(sample, y)


def _picked(sample: Any, keys: Keys) -> Any:
    if isinstance(keys, str | int):
        try:
            return sample[keys]
        except (KeyError, IndexError, TypeError):
            parts = ", ".join(map(repr, _keys_of(sample))) if _has_parts(sample) else "none"
            raise ValueError(f"a sample has no part {keys!r}, it has {parts}") from None
    picked = {key: _picked(sample, key) for key in keys}
    return tuple(picked.values()) if all(isinstance(key, int) for key in keys) else picked


def _keys_besides(targets: Keys | None, sample: Any) -> Keys:
    """Return the keys of all parts but the targets, or the key of the only one."""
    if not _has_parts(sample):
        raise ValueError(
            f"y={targets!r}: a sample is a {type(sample).__name__}, which has no parts"
        )
    target_keys = {targets} if isinstance(targets, str | int) else set(targets or ())
    keys = [key for key in _keys_of(sample) if key not in target_keys]
    return keys[0] if len(keys) == 1 else keys


def _has_parts(sample: Any) -> bool:
    return isinstance(sample, Mapping | tuple | list)


def _keys_of(sample: Any) -> Iterable[Key]:
    """Return the keys of the parts of a sample: names, or indices."""
    return sample if isinstance(sample, Mapping) else range(len(sample))
