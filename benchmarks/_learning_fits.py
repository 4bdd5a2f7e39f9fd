"""Runs the fits of ``learning``: ours, and those of peers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import _common as common
import _peers as peers
import numpy as np
import torch
from _auto_cells import KINDS, run_cell
from _learning_cases import MERGES, OURS, Case, Marks, Result, append, load
from _peers import MERGING, PEERS, PLAIN
from numpy.typing import NDArray
from torch import distributed, nn

FIRST_MERGES = 3
"""Merges that are not measured."""


def measure(cases: Sequence[Case], path: Path) -> dict[str, Result]:
    """Run the cases that a file does not have, and return what it has then.

    Those of peers that are not installed are left out.
    """
    done = load(path)
    installed = (OURS, MERGES, *PEERS)
    missing = [case for case in cases if case.key not in done and case.contestant in installed]
    skipped = len(cases) - len(missing)
    print(f"{len(cases)} fits, {skipped} of them done or not installed", file=sys.stderr)
    for number, case in enumerate(missing, 1):
        result = run(case)
        append(path, case, result)
        line = f"{number}/{len(missing)}: {case.label}: {result.accuracy:.2f}%"
        print(line, file=sys.stderr, flush=True)
    return load(path)


def run(case: Case) -> Result:
    """Run one case."""
    if case.contestant == MERGES:
        return run_merges(case)
    if case.network in KINDS:
        return run_cell(case, _fit)
    if case.contestant == OURS:
        return run_ours(case)
    result = peers.run_ranks(run_rank, case.workers, case)[0]
    return result or Result()


def run_ours(case: Case) -> Result:
    """Fit, and evaluate at the marks. Processes are started and warm before the time begins."""
    from compss_train.callbacks import Callback
    from compss_train.exceptions import DivergedError

    images = case.images()

    class KeepMarks(Callback):
        trained = 0

        def on_round_end(self, trainer: Any, record: dict[str, Any]) -> None:
            self.trained += record["samples"]
            marks.pass_by(self.trained / len(images.x), trainer.get_parameters)

    net = common.network(case.network, case.seed)
    with common.warm_trainer(
        net,
        case.optimizer,
        workers=case.workers,
        engine=case.engine,
        seed=case.seed,
        schedule=case.rate_of(),
    ) as trainer:
        marks = Marks(case)
        diverged = False
        try:
            _fit(trainer, case, images.x, images.y, KeepMarks())
        except DivergedError:
            diverged = True
        used = dict(trainer.configuration["fit"] or {})
        return marks.result(merges=len(trainer.history), diverged=diverged, used=used)


def _fit(trainer: Any, case: Case, x: Any, y: Any, *callbacks: Any) -> None:
    """Fit with the options of the case.

    All samples are shuffled, so that the shares of workers are alike.
    """
    from compss_train import Merge

    names = {option.name for option in fields(Merge)}
    of_merge = {name: value for name, value in case.options.items() if name in names}
    options = {name: value for name, value in case.options.items() if name not in names}
    options["merge"] = Merge(options.get("merge"), **of_merge)
    trainer.fit(
        x,
        y,
        num_epochs=case.epochs,
        shuffle="total",
        callbacks=callbacks,
        progress=False,
        **options,
    )


def run_merges(case: Case) -> Result:
    """Measure merges of two workers that train 10 million parameters on one batch a round."""
    from compss_train import DistributedTrainer
    from compss_train.reports.timeline import totals, worker_intervals

    x = np.zeros((case.samples, 1000), np.float32)
    y = np.zeros(case.samples, np.int64)
    with DistributedTrainer(case.workers, engine=case.engine, seed=case.seed, threads=1) as trainer:
        wide = nn.Sequential(nn.Linear(1000, 3330), nn.ReLU(), nn.Linear(3330, 2000))
        trainer.build(wide, case.optimizer, "cross_entropy")
        _fit(trainer, case, x, y)
        seconds = totals(worker_intervals(trainer.history))
        # The last one waits for the end, too.
        rounds = range(min(FIRST_MERGES, case.epochs - 2), case.epochs - 1)
        merging = [seconds[position, 0]["merging"] for position in rounds]
        return Result(merges=len(trainer.history), merge_seconds=merging)


def run_rank(rank: peers.Rank, case: Case) -> Result | None:
    """Train as a rank of a peer, on its share of each epoch's permutation.

    The first rank has a result.
    """
    torch.set_num_threads(1)
    images = case.images()
    net = common.network(case.network, case.seed)
    batch = case.options["batch_size"]
    x = torch.from_numpy(images.x)
    y = torch.from_numpy(images.y)
    peers.warm_up(net, case.optimizer, x[:batch], y[:batch])
    period = case.options.get("every", 1)
    steps = len(rank.shares(len(x), 0, case.seed, batch))

    def state() -> dict[str, NDArray[Any]]:
        """Return the mean state of all ranks, as ours evaluates.

        What the ranks train stays as it is.
        """
        means = {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}
        for tensor in means.values():
            if case.contestant in MERGING and tensor.is_floating_point():
                distributed.all_reduce(tensor)
                tensor /= case.workers
        return {name: tensor.numpy() for name, tensor in means.items()}

    if case.contestant != PLAIN:
        rank.join()
    optimizer = peers.optimizer_for(net, case.optimizer)
    exchange = peers.Exchange(net, optimizer, rank, period)
    with peers.METHODS[case.contestant](exchange) as (wrapped, after_step):
        schedule = case.rate_of() or (lambda epoch: 1.0)
        lr = case.optimizer["lr"]
        peers.meet()
        marks = Marks(case)
        for epoch in range(case.epochs):
            for group in optimizer.param_groups:
                group["lr"] = lr * schedule(epoch)
            for number, rows in enumerate(rank.shares(len(x), epoch, case.seed, batch), 1):
                peers.step(wrapped, optimizer, x.index_select(0, rows), y.index_select(0, rows))
                after_step()
                marks.pass_by(epoch + number / steps, state)
        peers.meet()
    return marks.result(merges=case.epochs * steps // period) if rank.number == 0 else None
