"""``compss-train advise run.toml``: how many workers learn as much as one, before a run."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from typing import Self

from compss_train._utils import strict_json
from compss_train.cli import run_files
from compss_train.cli.run_files import objects, training, trust
from compss_train.model.net_optimizers import net_optimizer
from compss_train.reports import formatting
from compss_train.training.data_source import as_data_source
from compss_train.training.presets import (
    FitFacts,
    auto_batch,
    auto_merge,
    enough_epochs,
    enough_workers,
)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What ``merge="auto"`` chooses for a number of workers."""

    workers: int
    batch_size: int
    batches_per_epoch: int
    """Batches of each worker."""
    every: int
    """``unit`` between two merges."""
    unit: str
    outer_step: bool
    """Whether an outer optimizer steps after the mean."""
    as_one_after: int | None
    """Epochs after which they should have learnt as much as one worker, if ever."""

    @classmethod
    def of(cls, facts: FitFacts) -> Self:
        """Return the choice for the workers of some facts."""
        batch_size = auto_batch(facts)
        merge = auto_merge(facts, batch_size)
        return cls(
            workers=facts.workers,
            batch_size=batch_size,
            batches_per_epoch=ceil(facts.samples / (batch_size * facts.workers)),
            every=merge.every if isinstance(merge.every, int) else 1,
            unit=merge.unit or "epochs",
            outer_step=merge.outer_optimizer is not None,
            as_one_after=enough_epochs(facts, batch_size),
        )


def advise_before_run(path: Path, numbers: Sequence[int], *, as_json: bool) -> None:
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
        epochs: int = run.arguments["num_epochs"]
    choices = [Choice.of(replace(facts, workers=workers)) for workers in numbers]
    most_workers = enough_workers(facts, epochs)
    if as_json:
        answer = {
            "file": str(path),
            "samples": facts.samples,
            "epochs": epochs,
            "choices": [asdict(choice) for choice in choices],
            "learn_as_one": most_workers,
        }
        print(strict_json.dumps(answer, indent=2))
        return
    lines = [["workers", "batch", "batches an epoch", "merged every", "by", "as one after"]]
    for choice in choices:
        lines.append(
            [
                str(choice.workers),
                str(choice.batch_size),
                str(choice.batches_per_epoch),
                f"{choice.every} {choice.unit}",
                "an outer step" if choice.outer_step else "the mean",
                _after(choice.as_one_after),
            ]
        )
    print(f'{path}: {formatting.counted(facts.samples, "sample")}, merge = "auto"\n')
    print("\n".join(formatting.columns(lines, str.rjust)))
    duration = formatting.counted(epochs, "epoch")
    print(
        f"\nMost workers, of 64, that should lose little against one in {duration}: {most_workers}."
    )
    print("From a run of an epoch or two, this command also predicts the seconds of a round.")


def _after(epochs: int | None) -> str:
    return "never" if epochs is None else formatting.counted(epochs, "epoch")
