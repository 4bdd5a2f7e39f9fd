"""``python -m tests.fit_options`` writes the options of ``fit`` wherever they stand.

``FitOptions`` declares an option: its name, type, default and documentation. Editors and ``help``
need them in the signature and the docstring of ``DistributedTrainer.fit``, and by its call and
``FitKeywords`` type checkers do. A test names what differs there.
"""

import ast
import difflib
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "compss_train"
DECLARED = PACKAGE / "training/fit.py"
TRAINER = PACKAGE / "trainer.py"
KEYWORDS = PACKAGE / "training/named_fits.py"

WIDTH = 100
NO_OPTIONS = {"preset"}
"""Fields of ``FitOptions`` that no one gives."""
FIXED_BY_NAMES = {
    "num_epochs",
    "batch_size",
    "num_batches_per_worker",
    "shuffle",
    "shuffle_block_data",
}
"""Options that the name of one of the eight fits and its own arguments fix."""


@dataclass
class Option:
    """An option as ``FitOptions`` declares it, in words of the source."""

    name: str
    type: str
    default: str | None
    documentation: str

    @property
    def parameter(self) -> str:
        """The option in a signature; ``merge`` is also given by its kind."""
        if self.name == "merge":
            return 'merge: MergeLike = "synchronous"'
        return f"{self.name}: {self.type}" + (f" = {self.default}" if self.default else "")

    @property
    def argument(self) -> str:
        """The option in the call of ``FitOptions``."""
        return "merge=Merge.of(merge)" if self.name == "merge" else f"{self.name}={self.name}"

    @property
    def keyword(self) -> str:
        """The option in ``FitKeywords``; names fix the kind of a merge."""
        return f"{self.name}: {'Merge | Preset' if self.name == 'merge' else self.type}"

    def entry(self, indent: str) -> list[str]:
        """Return the lines of the option in a docstring."""
        inner = indent + " " * 4
        text = textwrap.wrap(
            self.documentation,
            WIDTH,
            initial_indent=inner,
            subsequent_indent=inner,
            break_long_words=False,
            break_on_hyphens=False,
        )
        return [f"{indent}{self.name}:", *text]


def declared() -> Iterator[Option]:
    """Iterate over the options; raise ``ValueError`` for one without documentation."""
    source = DECLARED.read_text()
    body = definition(ast.parse(source), "FitOptions").body
    for field, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign) or field.target.id in NO_OPTIONS:
            continue
        match following:
            case ast.Expr(ast.Constant(str(text))):
                documentation = " ".join(text.split())
            case _:
                raise ValueError(f"FitOptions.{field.target.id} has no documentation below it")
        default = field.value
        if isinstance(default, ast.Call):
            keywords = {keyword.arg: keyword.value for keyword in default.keywords}
            default = keywords.get("default")
        yield Option(
            name=field.target.id,
            type=ast.get_source_segment(source, field.annotation),
            default=None if default is None else ast.get_source_segment(source, default),
            documentation=documentation,
        )


def definition(tree: ast.AST, name: str) -> ast.ClassDef | ast.FunctionDef:
    """Return the class or function of this name."""
    kinds = ast.ClassDef | ast.FunctionDef
    named = (node for node in ast.walk(tree) if isinstance(node, kinds) and node.name == name)
    return next(named)


def replaced(lines: list[str], nodes: list[ast.AST], new: list[str]) -> None:
    """Put new lines in place of those from the first to the last of these nodes."""
    first = min(node.lineno for node in nodes)
    last = max(node.end_lineno for node in nodes)
    lines[first - 1 : last] = new


def trainer_text(options: list[Option]) -> str:
    """Return the file of ``fit`` with these options in its call, its docstring and signature."""
    lines = TRAINER.read_text().splitlines()
    fit = definition(ast.parse("\n".join(lines)), "fit")
    # From the last to the first, so that numbers of lines stay right.
    calls = (node for node in ast.walk(fit) if isinstance(node, ast.Call))
    call = next(node for node in calls if ast.unparse(node.func) == "FitOptions")
    replaced(lines, call.keywords, [f"{' ' * 12}{option.argument}," for option in options])
    indent = " " * 8
    docstring = fit.body[0]
    first = lines.index(f"{indent}num_epochs:", docstring.lineno)
    stop = lines.index("", first)
    lines[first:stop] = [line for option in options for line in option.entry(indent)]
    defaults = [node for node in fit.args.kw_defaults if node is not None]
    signature = [f"{indent}{option.parameter}," for option in options]
    replaced(lines, [*fit.args.kwonlyargs, *defaults], signature)
    return "\n".join(lines) + "\n"


def keywords_text(options: list[Option]) -> str:
    """Return the file of ``FitKeywords`` with the options that no name fixes."""
    lines = KEYWORDS.read_text().splitlines()
    body = definition(ast.parse("\n".join(lines)), "FitKeywords").body
    fields = [node for node in body if isinstance(node, ast.AnnAssign)]
    free = [option for option in options if option.name not in FIXED_BY_NAMES]
    replaced(lines, fields, [f"    {option.keyword}" for option in free])
    return "\n".join(lines) + "\n"


def texts() -> dict[Path, str]:
    """Return the files in which options stand, as they should be."""
    options = list(declared())
    return {TRAINER: trainer_text(options), KEYWORDS: keywords_text(options)}


def differences() -> list[str]:
    """Return the lines that differ from what ``FitOptions`` declares: - what is, + what should."""
    return [
        f"{path.name}: {line}"
        for path, text in texts().items()
        for line in difflib.unified_diff(path.read_text().splitlines(), text.splitlines(), n=0)
        if line[0] in "+-" and line[:3] not in ("+++", "---")
    ]


if __name__ == "__main__":
    for path, text in texts().items():
        path.write_text(text)
