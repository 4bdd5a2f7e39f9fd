"""Words of errors: tests assert type and name, the whole texts are in a file.

There a diff shows what changed.
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
    """The texts by test. With ``writes`` those of this run replace them.

    It is a plugin of pytest, which tells of tests that fail: their texts are added to those known,
    as a text that is missing may be one that the failure left out.
    """

    def __init__(self, *, writes: bool) -> None:
        self._writes = writes
        # Another release of torch has other optimizers, for example, whose names are listed.
        release = f"torch=={torch.__version__.partition('+')[0]}\n"
        self._compares = release in (ROOT / "constraints.txt").read_text()
        self._known: dict[str, list[str]] = json.loads(FILE.read_text()) if FILE.exists() else {}
        self._new: dict[str, set[str]] = {}
        self._failed: set[str] = set()

    @contextmanager
    def raises(
        self, test: str, folder: Path, error: type[BaseException], name: str
    ) -> Iterator[None]:
        """Check an error in a block: its type, a name in its text or notes, and its words."""
        with pytest.raises(error) as caught:
            yield
        text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
        assert name in text
        text = text.replace(str(folder), "FOLDER").replace(str(ROOT), "ROOT")
        text = re.sub(r"0x[0-9a-f]+", "0x...", text)
        if self._writes:
            self._new.setdefault(test, set()).add(text)
        elif self._compares:
            hint = f"if these words are meant: pytest --write-messages {test.partition('::')[0]}"
            assert text in self._known.get(test, []), hint

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep which tests fail."""
        if report.failed:
            self._failed.add(report.nodeid.partition("[")[0])

    def end(self) -> None:
        """Write the texts, without those of tests that are gone."""
        if not self._new:
            return
        texts = {test: set(known) for test, known in self._known.items()}
        for test, new in self._new.items():
            texts[test] = new | texts.get(test, set()) if test in self._failed else new
        kept = {test: sorted(texts[test]) for test in sorted(texts) if _exists(test)}
        FILE.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def _exists(test: str) -> bool:
    file, _, function = test.partition("::")
    path = ROOT / file
    return path.exists() and f"def {function}(" in path.read_text()
