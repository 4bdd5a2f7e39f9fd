"""Arguments that several commands have, and what they say."""

from __future__ import annotations

import argparse
import json


def add_run_settings(parser: argparse.ArgumentParser) -> None:
    """Add what changes values of a run file."""
    setting = "another value of a key in the file; VALUE as TOML has it, texts also without quotes; may be repeated"
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="settings", help=setting
    )
    parser.add_argument("--workers", type=int, metavar="N", help="model copies (trainer.num_workers)")
    engines = ("auto", "serial", "local", "compss")
    parser.add_argument("--engine", choices=engines, help="where tasks run (trainer.engine)")


def settings_of(options: argparse.Namespace) -> list[str]:
    """Return what was set, each as ``SECTION.KEY=VALUE``."""
    shorthands = {"num_workers": options.workers, "engine": options.engine}
    given = [f"trainer.{key}={json.dumps(value)}" for key, value in shorthands.items() if value is not None]
    return [*options.settings, *given]
