"""Values as JSON texts and named tensors, and a list that grows, of which each item is encoded once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from compss_train.checkpoints.tree import cut


@dataclass(frozen=True)
class Encoded:
    """A value as JSON can hold it, and the tensors that it names."""

    text: str
    tensors: dict[str, torch.Tensor]

    @classmethod
    def of(cls, value: Any, name: str) -> Encoded:
        """Encode a value; ``name`` is what the names of its tensors begin with."""
        tensors: dict[str, torch.Tensor] = {}
        return cls(json.dumps(cut(value, name, tensors)), tensors)


@dataclass
class GrowingList:
    """Encodes a list again and again; what is in it, but for the last item, is taken not to change.

    So a history costs a checkpoint the joining of texts, and thousands of rounds do not slow it down.
    """

    name: str
    _known: list[tuple[object, Encoded]] = field(default_factory=list)

    def encoded(self, items: Sequence[object]) -> Encoded:
        """Return the list, encoded."""
        settled = items[:-1]
        del self._known[self._same(settled) :]
        for place in range(len(self._known), len(settled)):
            self._known.append((settled[place], self._encoded(settled[place], place)))
        parts = [part for _, part in self._known]
        parts += [self._encoded(item, len(parts)) for item in items[-1:]]
        tensors = {name: tensor for part in parts for name, tensor in part.tensors.items()}
        return Encoded(f"[{', '.join(part.text for part in parts)}]", tensors)

    def _same(self, items: Sequence[object]) -> int:
        """Return how many of the first ones are known."""
        pairs = enumerate(zip(self._known, items, strict=False))
        return next((n for n, (known, item) in pairs if known[0] is not item), min(len(self._known), len(items)))

    def _encoded(self, item: object, place: int) -> Encoded:
        return Encoded.of(item, f"{self.name}/{place}")
