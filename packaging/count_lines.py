"""Prints the lines of code, the lines of import statements and the files of the package.

Blank lines, comments, docstrings (those of attributes as well) and import statements are no lines
of code.
"""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "compss_train"


def counted(text: str) -> tuple[int, int]:
    """Return the lines of code and of import statements of a module."""
    imports = 0
    left_out = set()
    for node in ast.walk(ast.parse(text)):
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        is_text = (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        )
        if is_import or is_text:
            left_out.update(range(node.lineno, node.end_lineno + 1))
        imports += node.end_lineno - node.lineno + 1 if is_import else 0
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(
        bool(line) and line[0] != "#" and number not in left_out for number, line in lines
    ), imports


if __name__ == "__main__":
    counts = [counted(path.read_text()) for path in PACKAGE.rglob("*.py")]
    code, imports = map(sum, zip(*counts, strict=True))
    print(f"{code} lines of code, {imports} lines of imports, {len(counts)} files")
