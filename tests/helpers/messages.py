"""Words of errors: tests assert type and name; the whole texts are in a file, where a diff shows
what changed.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests/messages.json"


class Messages:
    """The texts by test; with ``writes`` those of this run replace them."""

    def __init__(self, writes: bool) -> None:
        self._writes = writes
        # Another release of torch has other optimizers, for example, whose names are listed.
        self._compares = (
            f"torch=={torch.__version__.partition('+')[0]}\n"
            in (ROOT / "constraints.txt").read_text()
        )
        self._known: dict[str, list[str]] = json.loads(FILE.read_text()) if FILE.exists() else {}
        self._new: dict[str, set[str]] = {}

    @contextmanager
    def raises(
        self, test: str, folder: Path, error: type[BaseException], name: str
    ) -> Iterator[None]:
        """Check an error in a block: its type, a name in its text or notes, and that the words are
        those known.
        """
        with pytest.raises(error) as caught:
            yield
        text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
        assert name in text
        text = re.sub(
            r"0x[0-9a-f]+", "0x...", text.replace(str(folder), "FOLDER").replace(str(ROOT), "ROOT")
        )
        if self._writes:
            self._new.setdefault(test, set()).add(text)
        elif self._compares:
            hint = f"if these words are meant: pytest --write-messages {test.partition('::')[0]}"
            assert text in self._known.get(test, []), hint

    def end(self) -> None:
        """Write the texts, without those of tests that are gone."""
        if self._new:
            all_known = {
                **self._known,
                **{test: sorted(texts) for test, texts in self._new.items()},
            }
            found = {
                test: texts
                for test, texts in sorted(all_known.items())
                if _exists(*test.split("::"))
            }
            FILE.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def _exists(file: str, function: str) -> bool:
    path = ROOT / file
    return path.exists() and f"def {function}(" in path.read_text()
