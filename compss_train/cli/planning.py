"""``compss-train advise run.toml``: how many workers learn as much as one, before a run."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path

from compss_train.cli import run_files
from compss_train.cli.run_files import objects, training, trust
from compss_train.model.net_optimizers import net_optimizer
from compss_train.reports import formatting
from compss_train.training.data_source import as_data_source
from compss_train.training.presets import (
    FitFacts,
    auto_batch,
    auto_merge,
    enough_workers,
    learns_as_one,
)


def advise_before_run(path: Path, numbers: Sequence[int]) -> None:
    """Print what ``merge="auto"`` chooses for the data and network of a run file."""
    run_file = run_files.read_run_file(path)
    with trust.working_directory(run_file):
        run = training.prepare_run(run_file, overwrite=True)
        build = objects.keywords_of(run_file.section("build"), training.BUILD)
        net = run.trainer.model()
        source = as_data_source(run.arguments["x"], run.arguments["y"], run.trainer.num_workers)
        facts = FitFacts.of(
            source.number_samples,
            max(numbers),
            net,
            net_optimizer(build["optimizer"], net),
            scheduled=build.get("schedule") is not None,
        )
    lines = [["workers", "batch", "batches an epoch", "merged every", "by", "learns as one"]]
    for workers in numbers:
        of_workers = replace(facts, workers=workers)
        batch = auto_batch(of_workers)
        merge = auto_merge(of_workers, batch)
        lines.append(
            [
                str(workers),
                str(batch),
                str(ceil(facts.samples / (batch * workers))),
                f"{merge.every or 1} {merge.unit or 'epochs'}",
                "the mean" if merge.outer_optimizer is None else "an outer step",
                "yes" if learns_as_one(of_workers, batch) else "no",
            ]
        )
    print(f'{path}: {formatting.counted(facts.samples, "sample")}, merge = "auto"\n')
    print("\n".join(formatting.columns(lines, str.rjust)))
    print(
        "\nMost workers, of 64, that should lose little against one in an epoch: "
        f"{enough_workers(facts)}."
    )
    print("From a run of an epoch or two, this command also predicts the seconds of a round.")
