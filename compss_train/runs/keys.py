"""The keys of the sections whose keys are arguments of the trainer, as it is now."""

from __future__ import annotations

from compss_train.data import FileDataset
from compss_train.runs.annotations import described
from compss_train.runs.options import Option, options_of, shown
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
    """Return the keys of ``[fit]`` that are arguments of ``fit``."""
    return options_of(DistributedTrainer.fit, leave_out=_ELSEWHERE)


def told_keys() -> str:
    """Return all these keys, with their defaults and what they take."""
    sections = {
        "[trainer]": trainer_options(),
        "[data] and [validation], of files": options_of(FileDataset),
        "[build]": build_options(),
        "[fit]": fit_options(),
    }
    return "\n\n".join("\n".join([name, *map(_line, options.values())]) for name, options in sections.items())


def _line(option: Option) -> str:
    default = "(needed)" if option.required else f"= {shown(option.default)}"
    return f"  {option.name} {default}".ljust(40) + f"# {described(option.annotation)}"
