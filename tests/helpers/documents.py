"""The folder of the repository, and the examples of its documents."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python_blocks(document):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)
