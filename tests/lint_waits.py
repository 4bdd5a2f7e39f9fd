"""Finds tests that sleep and hope: ``python -m tests.lint_waits [FILE ...]``.

It prints each place, and exits with 1 if there is one.

Tests wait for events: by ``wait_until`` of ``tests/helpers/waiting.py``, which has a limit, or by
what fails when nothing comes. What another process has written is read by ``text_of``: its file is
there before the text. Programs and threads under test may ``hang`` or ``pause``.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
EXEMPT = TESTS / "helpers" / "waiting.py", TESTS / "test_lint_waits.py"
INSTEAD = "wait for an event, with tests.helpers.waiting.wait_until if nothing tells of it"


def name_of(node: ast.expr) -> str:
    """Return the last part of a name."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def makes_event(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and name_of(node.func) == "Event"


def assigned(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Iterate over the targets of a program's assignments, each with its value."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
                yield from zip(targets, values, strict=False)
            case ast.Assign([target], value):
                yield target, value


def is_of_test(function: ast.AST) -> bool:
    """Return whether a module or function is run by pytest, and not by what is under test."""
    if not isinstance(function, ast.FunctionDef):
        return isinstance(function, ast.Module)
    marks = [mark.func if isinstance(mark, ast.Call) else mark for mark in function.decorator_list]
    return function.name.startswith("test_") or any(name_of(mark) == "fixture" for mark in marks)


def owned(node: ast.AST, function: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Iterate over all nodes below one, each with the innermost function around it."""
    for child in ast.iter_child_nodes(node):
        yield child, function
        is_function = isinstance(child, ast.FunctionDef | ast.Lambda)
        yield from owned(child, child if is_function else function)


def file_awaited(node: ast.AST) -> str | None:
    """Return the path in ``wait_until(path.exists)``, as text; ``None`` for all else."""
    match node:
        case ast.Call(func=function, args=[ast.Attribute(attr="exists", value=file), *_]) if (
            name_of(function) == "wait_until"
        ):
            return ast.dump(file)
    return None


def early_reads(tree: ast.AST) -> set[int]:
    """Return the lines that read a file of which the same function awaits only that it exists."""
    lines = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        nodes = [*ast.walk(function)]
        awaited = {file_awaited(node) for node in nodes}
        for node in nodes:
            match node:
                case ast.Attribute(attr="read_text" | "read_bytes", value=file) if (
                    ast.dump(file) in awaited
                ):
                    lines.add(node.lineno)
    return lines


def offences(source: str) -> Iterator[tuple[int, str]]:
    """Iterate over the lines of a program that wait for time, and what to do instead."""
    tree = ast.parse(source)
    for line in sorted(early_reads(tree)):
        yield line, "the file may be empty yet: text_of of tests.helpers.waiting waits for a text"
    events = {name_of(target) for target, value in assigned(tree) if makes_event(value)}
    for node, function in owned(tree, tree):
        match node:
            case (
                ast.Call(func=ast.Name(id="sleep") | ast.Attribute(attr="sleep"))
                | ast.alias(name="sleep")
            ):
                yield node.lineno, f"sleep: {INSTEAD}"
            case ast.Constant(value=str(text)) if re.search(r"\bsleep\(", text):
                words = "sleep in a program: let it hang or pause (tests.helpers.waiting), or wait"
                yield node.lineno, words
            case ast.Call(func=ast.Attribute(attr="wait", value=event), args=[_, *_]) if (
                makes_event(event)
            ):
                yield node.lineno, f"nobody sets this event: {INSTEAD}"
            case ast.Expr(ast.Call(func=ast.Attribute(attr="wait", value=event), args=[_, *_])) if (
                name_of(event) in events
            ):
                yield node.lineno, "goes on though nobody has set the event: assert event.wait(...)"
            case ast.Call(func=ast.Name(id="hang" | "pause" as name)) if is_of_test(function):
                yield node.lineno, f"{name} is for what is under test: {INSTEAD}"


def main(paths: list[Path]) -> int:
    """Print the offences in files; return the exit status."""
    places = [
        f"{shown(path)}:{line}: {words}"
        for path in paths
        if path not in EXEMPT
        for line, words in offences(path.read_text())
    ]
    print(*places, sep="\n", end="\n" if places else "")
    return 1 if places else 0


def shown(path: Path) -> Path:
    """Return a path as the user of this folder would write it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    sys.exit(main([Path(path) for path in sys.argv[1:]] or sorted(TESTS.rglob("*.py"))))
