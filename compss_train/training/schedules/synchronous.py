"""Synchronous merging: all workers of a round start from the same parameters and merge at its end.

The merge is a tree of tasks for each part of the parameters; all work on references.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from compss_train.engines import Ref
from compss_train.engines.mapping import MappedChunk
from compss_train.model.optimizers import optimizer_factory
from compss_train.model.parameters import Parameters
from compss_train.model.parts import Cut
from compss_train.training.callback import MergingWorker
from compss_train.training.merge import MergeKind
from compss_train.training.merged import Merged, Parts
from compss_train.training.schedules.base import MergeSchedule, SubmittedRound
from compss_train.training.schedules.round_workers import RoundWorkers
from compss_train.training.schedules.tree import best_arity, gather_by_tree
from compss_train.worker.merging.buffers import NO_BUFFER_RULES
from compss_train.worker.merging.merge import MergeStages, merge_part
from compss_train.worker.merging.outer_step import steps_by_element, steps_by_weight
from compss_train.worker.merging.rules import Gathering, Reducing
from compss_train.worker.train import training

LEAST_PART_BYTES = 2**20
"""Smaller parts cost more as tasks than merging them apart gains."""


class SynchronousSchedule(MergeSchedule):
    """Every worker starts a round from the global parameters; one merge of all ends it."""

    name: ClassVar[MergeKind] = "synchronous"
    by_rounds = True
    shares_tasks = True

    @cached_property
    def stages(self) -> MergeStages:
        """The rule of the merge, and the steps that follow it."""
        merge = self.merge
        outer = merge.outer_optimizer
        return MergeStages(
            rule=merge.chosen_rule,
            names=self.session.names,
            optimizer=None if outer is None else optimizer_factory(outer),
            moments=merge.optimizer_state == "average",
            compressed=merge.dtype is not None,
            decay=merge.decay("merges"),
            buffers=NO_BUFFER_RULES if merge.buffers is None else self.session.buffer_rules(merge),
            by_steps=merge.averaging_unit == "steps",
        )

    def cut(self, parameters: Parameters) -> Cut:
        """Return as many parts as the engine merges at a time, if they are large enough."""
        nbytes = sum(array.nbytes for array in parameters.values())
        stages = self.stages
        part_bytes = max(LEAST_PART_BYTES, self.engine.traits.object_bytes)
        number = min(self.engine.merging_places, max(1, nbytes // part_bytes))
        optimizer = stages.optimizer
        if not stages.rule.by_element or (optimizer is not None and not steps_by_weight(optimizer)):
            number = 1
        inside = optimizer is None or steps_by_element(optimizer)
        return Cut.of(parameters, number, inside=inside)

    @cached_property
    def _arity(self) -> int:
        nbytes = sum(array.nbytes for array in self.session.model.parameters.values())
        tasks = self.session.num_workers
        return best_arity(
            self.engine.traits.task_seconds, nbytes / len(self.merged.cut.parts), tasks
        )

    @cached_property
    def _published_stages(self) -> Ref:
        return self.engine.publish(self.stages)

    @cached_property
    def _gathering(self) -> Ref:
        return self.engine.publish(Gathering(self.stages.rule, self.merged.cut))

    def submit(self, workers: RoundWorkers) -> SubmittedRound:
        """Train from the global parameters and merge; a worker without samples does not count.

        If callbacks may change the weights of workers, ``wait`` merges them.
        """
        active = [*workers.members]
        weighed = self.weigh is not None
        trained: dict[int, Parts] | None = None
        one_task = len(active) == 1 and not weighed and len(self.merged.cut.parts) == 1
        if one_task and self.stages.only_reduces:  # the only task reduces as well
            reducing = Reducing(self.stages.rule)
            mapped = workers.train(active, training, self.start, combine=reducing)
            self.merged = Merged(cut=self.merged.cut, parameters=mapped[0].results)
        else:
            mapped = self.train(workers, active)
            results = [of_chunk.results for of_chunk in mapped]
            trained = dict(zip((chunk.start for chunk in active), results, strict=True))
            if not weighed:
                self.merged = self.merge_all(trained)
        return SubmittedRound(
            workers=workers,
            tasks=[*workers.members.values()],
            measured={"workers": [of_chunk.reports for of_chunk in mapped]},
            merged=self.merged,
            states=[*self.session.states],
            trained=trained if weighed else None,
            unmerged=len(active) if weighed else 0,
        )

    def train(self, workers: RoundWorkers, chunks: Sequence[range]) -> list[MappedChunk]:
        """Submit the tasks of chunks; their results are what enters the merge of each part."""
        return workers.train(
            chunks,
            training,
            self.start,
            combine=self._gathering,
            parts=len(self.merged.cut.parts),
        )

    def wait(
        self, submitted: SubmittedRound, timeout: float, evaluate: Callable[[SubmittedRound], None]
    ) -> bool:
        """Wait for a round; merge it when its workers have arrived, if their weights may change."""
        if not super().wait(submitted, timeout, evaluate):
            return False
        if submitted.trained is None:
            return True
        reports = dict(zip((worker for (worker,) in submitted.tasks), submitted.refs, strict=True))
        weights = self.weights_of({worker: (submitted, ref) for worker, ref in reports.items()})
        self.merged = self.merge_all(submitted.trained, weights)
        submitted.merged = self.merged
        submitted.trained = None
        submitted.unmerged = 0
        evaluate(submitted)
        return super().wait(submitted, 0.0, evaluate)

    def weights_of(
        self, workers: Mapping[int, tuple[SubmittedRound, Ref]]
    ) -> dict[int, float] | None:
        """Return the weights of workers that have arrived; ``None`` if nobody may change them.

        ``workers`` has the round of each, and the reference to its report.
        """
        if self.weigh is None:
            return None
        reports = self.engine.fetch([report for _, report in workers.values()], small=True)
        measures = self.session.model.built.training_spec.measures
        merging = [
            MergingWorker(
                worker=worker,
                round=submitted.workers.round.number,
                measured=measures.values(measured),
                weight=sum(part.merge_weight for part in measured),
            )
            for (worker, (submitted, _)), measured in zip(workers.items(), reports, strict=True)
        ]
        self.weigh(merging)
        weights = {worker.worker: worker.weight for worker in merging}
        for worker, (submitted, _) in workers.items():
            submitted.weights = {**(submitted.weights or {}), worker: weights[worker]}
        return weights

    @property
    def start(self) -> list[Any]:
        """What a round starts from: parameters, moments, and the average that workers continue."""
        merged = self.merged
        averaged = merged.averaged if self.merge.averaging_unit == "steps" else None
        return [
            [*merged.parameters],
            None if merged.moments is None else [*merged.moments],
            None if averaged is None else [*averaged],
        ]

    def merge_all(
        self, trained: Mapping[int, Parts], weights: Mapping[int, float] | None = None
    ) -> Merged:
        """Submit the tasks that merge the parts of results, given by their first workers.

        ``weights`` are those of workers with tasks of their own, if they are not the usual ones.
        """
        merged = self.merged
        stages = self.stages
        results: dict[str, list[Ref]] = {name: [] for name in ("parameters", *stages.kept)}
        for number in range(len(merged.cut.parts)):
            of_part = {first: parts[number] for first, parts in trained.items()}
            refs = self.engine.submit(
                merge_part,
                gather_by_tree(
                    self.engine,
                    stages.rule,
                    of_part,
                    arity=self._arity,
                    place=number,
                    weights=weights,
                ),
                self._published_stages,
                merged.parameters[number],
                merged.part("outer", number),
                merged.part("averaged", number),
                merged.part("moments", number) if stages.compressed else None,
                weights,
                returns=len(results),
                priority=True,
                place=number,
            )
            values = [refs] if len(results) == 1 else refs
            for name, ref in zip(results, values, strict=True):
                results[name].append(ref)
        return replace(
            merged,
            parameters=results["parameters"],
            moments=results.get("moments"),
            outer=results.get("outer"),
            averaged=results.get("averaged"),
        )
