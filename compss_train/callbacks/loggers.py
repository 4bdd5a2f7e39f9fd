"""Callbacks that write the history to files while a fit runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compss_train.callbacks.base import Callback

if TYPE_CHECKING:
    from compss_train.trainer import DistributedTrainer


class JsonLines(Callback):
    """Appends each round's record to a file as one line of JSON, as soon as the round ends."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def on_round_end(self, trainer: DistributedTrainer, record: dict[str, Any]) -> None:
        """Append the record."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
