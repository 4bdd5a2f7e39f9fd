"""The keys of the sections, most of which are arguments of the trainer, as it is now."""

from __future__ import annotations

from inspect import Parameter
from typing import Literal

from compss_train.buffers import BufferSpec
from compss_train.cli.run_files import objects
from compss_train.cli.run_files.annotations import described
from compss_train.cli.run_files.data import array_options, block_options
from compss_train.cli.run_files.options import Option, options_of, shown
from compss_train.cli.run_files.output import output_options, stopping_options, tables
from compss_train.cli.run_files.split import fraction_options
from compss_train.data import FileDataset
from compss_train.trainer import DistributedTrainer

_ELSEWHERE = ("x", "y", "validation_data", "sample_weight", "resume")
"""Arguments of ``fit`` that other sections, or the command line, give."""


def trainer_options() -> dict[str, Option]:
    """Return the keys of ``[trainer]``."""
    return options_of(DistributedTrainer)


def build_options() -> dict[str, Option]:
    """Return the keys of ``[build]``."""
    return options_of(DistributedTrainer.build, leave_out=("net",))


def fit_options() -> dict[str, Option]:
    """Return the keys of ``[fit]``: arguments of ``fit``, and one that stands for a callback."""
    return {**options_of(DistributedTrainer.fit, leave_out=_ELSEWHERE), **stopping_options()}


def told_keys() -> str:
    """Return all keys of all sections, with their defaults and what they take."""
    called = {objects.CALLED: Option(objects.CALLED, Literal["module:name"], Parameter.empty)}
    sections = {
        "[trainer]": trainer_options(),
        "[network], with arguments of what is called as other keys": called,
        "[data] and [validation], of files": options_of(FileDataset),
        "[data] and [validation], of arrays": array_options(),
        "[data] and [validation], of a function, with its arguments as other keys": {**called, **block_options()},
        "[validation], of a part of [data]": fraction_options(),
        "[build]": build_options(),
        "[fit]": fit_options(),
        "[fit] buffer, a table": options_of(BufferSpec),
        "[output]": output_options(),
        **{f"{where}, a table": options for where, options in tables().items() if options},
    }
    return "\n\n".join("\n".join([name, *map(_line, options.values())]) for name, options in sections.items())


def _line(option: Option) -> str:
    default = "(needed)" if option.required else f"= {shown(option.default)}"
    return f"  {option.name} {default}".ljust(40) + f"# {described(option.annotation)}"
