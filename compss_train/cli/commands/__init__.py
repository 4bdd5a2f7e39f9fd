"""The subcommands of ``compss-train``. Modules that need torch are imported when a command runs."""

from compss_train.cli.commands.advise import ADVISE
from compss_train.cli.commands.base import Command
from compss_train.cli.commands.completion import COMPLETION
from compss_train.cli.commands.compss_setup import CONFIGURE, DOCTOR
from compss_train.cli.commands.data import SEND, SHARD
from compss_train.cli.commands.fit import FIT
from compss_train.cli.commands.inference import EVALUATE, EXPORT, PREDICT
from compss_train.cli.commands.reports import COMPARE, PLOT, REPORT, RUNS

__all__ = ["COMMANDS", "Command"]

COMMANDS: tuple[Command, ...] = (
    FIT,
    EVALUATE,
    PREDICT,
    REPORT,
    PLOT,
    COMPARE,
    RUNS,
    ADVISE,
    EXPORT,
    SHARD,
    SEND,
    DOCTOR,
    CONFIGURE,
    COMPLETION,
)
"""In the order of ``compss-train --help``."""
