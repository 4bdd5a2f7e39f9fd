"""The main program of an application: calls the function that a file names, writes what it returns to another.

The function is imported, so that what it defines has a module that workers can import, too.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from _compss import RESULT


def main() -> None:
    request = Path(sys.argv[1])
    asked = json.loads(request.read_text())
    function = getattr(importlib.import_module(asked["module"]), asked["function"])
    result = json.dumps(function(*asked["arguments"]))
    request.with_name(RESULT).write_text(result)


if __name__ == "__main__":
    main()
