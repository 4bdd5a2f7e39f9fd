"""The subcommands of ``compss-train``, one module each; those that need torch import it when they run."""

from __future__ import annotations

from compss_train.cli.commands import (
    completion,
    configure,
    doctor,
    evaluate,
    export,
    fit,
    plot,
    predict,
    report,
    send,
    shard,
)
from compss_train.cli.commands.base import Command

__all__ = ["COMMANDS", "Command"]

COMMANDS: tuple[Command, ...] = (
    fit.COMMAND,
    evaluate.COMMAND,
    predict.COMMAND,
    report.COMMAND,
    plot.COMMAND,
    export.COMMAND,
    shard.COMMAND,
    send.COMMAND,
    doctor.COMMAND,
    configure.COMMAND,
    completion.COMMAND,
)
"""In the order of ``compss-train --help``."""
