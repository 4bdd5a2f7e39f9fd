"""Makes the reference of all public names from the docstrings, as pages: python docs/reference.py FOLDER."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pdoc
import pdoc.render

MODULES = (
    *(
        "trainer",
        "training.building",
        "training.base_trainer",
        "training.resuming",
        "training.named_fits",
        "training.callback",
    ),
    *("training.checkpoints.storage", "training.merge_intervals", "callbacks", "exceptions"),
    *(
        "data",
        "data.ragged",
        "buffers",
        "buffers.reading_ahead",
        "samplers",
        "engines",
        "engines.compss.configuration",
        "online",
    ),
    *("model.parameters", "model.losses", "model.optimizers", "model.metrics", "model.metrics.batch_mean"),
    *("model.lr_schedules", "model.export", "model.train_transform", "model.training_step"),
    *("parameter_server", "parameter_server.client", "parameter_server.serving"),
    *("reports.history", "reports.timeline", "reports.html"),
    *("integrations.sklearn", "integrations.dislib", "cli.doctor"),
)
"""What programs import from. The other modules are the package's own."""


def make(folder: Path) -> None:
    """Write a page for the package and each of its public modules into a folder, and an index."""
    pdoc.render.configure(docformat="numpy", show_source=False)
    with warnings.catch_warnings():
        # Types that are named in quotes are shown as they are written; names that need an extra have pages of their
        # own, where they come from.
        warnings.filterwarnings("ignore", "Error parsing type annotation|Found .* does not resolve")
        pdoc.pdoc("compss_train", *(f"compss_train.{name}" for name in MODULES), output_directory=folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
