"""Where COMPSs is installed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

DEFAULT_HOME = Path("/opt/COMPSs")


def compss_home() -> Path | None:
    """Return where COMPSs is installed: ``COMPSS_HOME``, or where ``runcompss`` lies; else ``None``."""
    if home := os.environ.get("COMPSS_HOME"):
        return Path(home)
    if (runcompss := shutil.which("runcompss")) is None:
        return None
    scripts = Path(runcompss).resolve().parents
    return scripts[3] if len(scripts) > 3 and (scripts[3] / "Runtime").is_dir() else None


def presumed_home() -> Path:
    """Return where COMPSs is installed, or where it would be by default."""
    return compss_home() or DEFAULT_HOME
