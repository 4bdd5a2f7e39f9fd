"""``Part``: one of the k pieces that named arrays are cut into, so that k nodes can merge them.

Large arrays are cut inside, at multiples of ``CHUNK`` elements, in the order of the arrays. So each
element is in one part, and what is done element by element has the same bits however many parts
there are.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from compss_train.model.compression import CHUNK, CompressedChange, Contribution
from compss_train.model.parameters import Parameters

Moments: TypeAlias = dict[tuple[str, str], NDArray[Any]]
"""What an optimizer keeps, by the names of the parameter and of torch's value."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements of a flattened array."""

    start: int
    stop: int
    shape: tuple[int, ...]
    """The shape of the whole array."""

    @property
    def is_whole(self) -> bool:
        """Whether these are all elements."""
        return self.stop - self.start == math.prod(self.shape)

    def of(self, array: Any) -> Any:
        """Return these elements, flat; the array itself if they are all."""
        if self.is_whole:
            return array
        if isinstance(array, CompressedChange):
            codes = array.codes.reshape(-1)[self.start : self.stop]
            return CompressedChange(codes, array.scale, array.dtype)
        return np.ravel(array)[self.start : self.stop]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Some of the arrays of parameters, and pieces of others."""

    arrays: Parameters
    """Flat pieces of arrays that are cut; other arrays as they are."""
    cut: Mapping[str, Piece] = field(default_factory=dict)
    """The pieces of arrays that are cut, by name."""


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Which elements of named arrays belong to each part, in the order of the arrays."""

    parts: tuple[Mapping[str, Piece], ...]

    @classmethod
    def of(cls, parameters: Mapping[str, NDArray[Any]], parts: int, *, inside: bool) -> "Cut":
        """Return at most ``parts`` parts of about equal bytes; cut inside of arrays if ``inside``.

        One part has the arrays as they are.
        """
        pieces = [
            (name, piece, array.itemsize)
            for name, array in parameters.items()
            for piece in (_chunks(array) if inside and parts > 1 else _whole(array))
        ]
        share = sum((piece.stop - piece.start) * size for _, piece, size in pieces) / parts
        filled: list[dict[str, Piece]] = [{}]
        taken = 0.0
        for name, piece, itemsize in pieces:
            nbytes = (piece.stop - piece.start) * itemsize
            # A piece belongs to the part in which its middle lies.
            if taken + nbytes / 2 > len(filled) * share and filled[-1] and len(filled) < parts:
                filled.append({})
            before = filled[-1].get(name)
            start = piece.start if before is None else before.start
            filled[-1][name] = Piece(start, piece.stop, piece.shape)
            taken += nbytes
        return cls(tuple(filled))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the arrays, by name."""
        return {name: piece.shape for part in self.parts for name, piece in part.items()}

    def split(self, arrays: Contribution) -> list[dict[str, Any]]:
        """Return the elements of each part; arrays that are not there are left out."""
        if len(self.parts) == 1:
            return [dict(arrays)]
        return [
            {name: piece.of(arrays[name]) for name, piece in part.items() if name in arrays}
            for part in self.parts
        ]

    def split_moments(self, moments: Mapping[tuple[str, str], Any]) -> list[dict[Any, Any]]:
        """Return the moments of each part, cut as their parameters are.

        Those of another shape, such as a count of steps, go with the first piece.
        """
        if len(self.parts) == 1:
            return [dict(moments)]
        split: list[dict[Any, Any]] = []
        for part in self.parts:
            inside = {}
            for key, value in moments.items():
                piece = part.get(key[0])
                if piece is not None and value.shape == piece.shape:
                    inside[key] = piece.of(value)
                elif piece is not None and piece.start == 0:
                    inside[key] = value
            split.append(inside)
        return split

    def parameters(self, arrays: Mapping[str, NDArray[Any]]) -> list["Parameters | Part"]:
        """Return parameters in parts, from which ``joined`` makes the same again."""
        if len(self.parts) == 1:
            return [dict(arrays)]
        return [
            Part(split, _cut_pieces(part))
            for split, part in zip(self.split(arrays), self.parts, strict=True)
        ]


def _cut_pieces(part: Mapping[str, Piece]) -> dict[str, Piece]:
    return {name: piece for name, piece in part.items() if not piece.is_whole}


def _whole(array: NDArray[Any]) -> list[Piece]:
    return [Piece(0, array.size, array.shape)]


def _chunks(array: NDArray[Any]) -> list[Piece]:
    if array.size <= CHUNK:
        return _whole(array)
    return [
        Piece(start, min(start + CHUNK, array.size), array.shape)
        for start in range(0, array.size, CHUNK)
    ]


def arrays_of(part: Parameters | Part) -> Parameters:
    """Return the arrays, and flat pieces of arrays, of a part."""
    return part.arrays if isinstance(part, Part) else part


def like(part: Parameters | Part, arrays: Parameters) -> Parameters | Part:
    """Return a part with other arrays, cut as those of ``part``."""
    return Part(arrays, part.cut) if isinstance(part, Part) else arrays


def joined(parts: Sequence[Parameters | Part]) -> Parameters:
    """Return the parameters of all their parts; arrays that are not cut are not copied."""
    pieces: dict[str, list[NDArray[Any]]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for part in parts:
        for name, array in arrays_of(part).items():
            pieces.setdefault(name, []).append(array)
        if isinstance(part, Part):
            shapes |= {name: piece.shape for name, piece in part.cut.items()}
    return {
        name: np.concatenate(arrays).reshape(shapes[name]) if name in shapes else arrays[0]
        for name, arrays in pieces.items()
    }


def joined_moments(
    parts: Sequence[Mapping[tuple[str, str], NDArray[Any]]],
    shapes: Mapping[str, tuple[int, ...]],
) -> Moments:
    """Return the moments of all their parts; ``shapes`` are those of the parameters."""
    pieces: dict[tuple[str, str], list[NDArray[Any]]] = {}
    for part in parts:
        for key, array in part.items():
            pieces.setdefault(key, []).append(array)
    return {
        key: arrays[0] if len(arrays) == 1 else np.concatenate(arrays).reshape(shapes[key[0]])
        for key, arrays in pieces.items()
    }
