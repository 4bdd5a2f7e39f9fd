"""``Job``: what the tasks of a fit have in common; ``Work``: what one worker does in one round.

A task gets both along with the values that it reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from compss_train._utils import PickledByFields
from compss_train.buffers import BufferSpec
from compss_train.data.block_passes import Batching, WorkerAssignment
from compss_train.data.columns import SINGLE, ColumnStructure
from compss_train.data.draws import Draws
from compss_train.data.reading import FilePart
from compss_train.data.sample_reading import SampleReader
from compss_train.model.compression import MergeDtype
from compss_train.model.lr_schedule import TimedHyperparameters
from compss_train.model.training_spec import TrainingSpec
from compss_train.samplers.pools import Pools
from compss_train.worker.callbacks import WorkerCallback
from compss_train.worker.merging.buffers import NO_BUFFER_RULES, BufferRules

OptimizerState = Literal["keep", "average", "reset", "reset_blocks"]


@dataclass(frozen=True, kw_only=True)
class Residency:
    """What a fit may keep on GPUs from task to task."""

    fit: str
    """A name that no other fit has."""
    last_epoch: int
    """The epoch after which nothing is needed any more."""
    share: float
    """A worker's share of a GPU."""
    idle_seconds: float
    """Seconds without a pass after which the rows leave, as of a fit that ended early."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """What the tasks of a fit or an evaluation have in common; it is published once.

    It says what is trained, how samples are read and cut into batches, and how workers train on
    them.
    """

    spec: TrainingSpec
    reader: SampleReader | None = None
    """Reads the samples of a data set by their numbers, which the blocks hold then."""
    batching: Batching
    """How blocks are cut into batches."""
    row_seed: int | None = None
    """Seed of the order of rows within a block; ``None`` to keep it, also if pools mix them."""
    bucketed_by: int | None = None
    """The number of the column by whose lengths samples are batched, or ``None``."""
    pools: Pools | None = None
    """The pools of a partial shuffle, or ``None``."""
    buffer: BufferSpec | None = None
    seed: int = 0
    """Seed of all other random draws: of buffers, partial shuffles and transforms."""
    structure: ColumnStructure = SINGLE
    """Which columns are x, y and weights."""
    may_skip: bool = False
    """Whether workers may skip files, and so have fewer samples than planned."""
    counts_samples: bool = False
    """Whether merges weigh workers by their samples, whatever their losses are means over."""
    optimizer_state: OptimizerState = "keep"
    """What happens to the state of the optimizer when workers merge."""
    averaging: float | None = None
    """The decay of the average of the parameters that each worker keeps by steps, or ``None``."""
    buffers: BufferRules = NO_BUFFER_RULES
    """How buffers merge that are no statistics."""
    dtype: MergeDtype | None = None
    """The dtype that changes of the weights are compressed to, or ``None``."""
    callbacks: Sequence[WorkerCallback] = ()
    checks_globals: bool = False
    """Whether functions of the user use global variables, which tasks must not change."""
    resident: Residency | None = None
    """How rows of blocks may stay on GPUs; ``None`` if they may not."""


@dataclass(slots=True, eq=False)
class Work(PickledByFields):
    """What one worker does in one round.

    No task changes it; it is not frozen, as the coordinator makes thousands.
    """

    block_passes: WorkerAssignment = ()
    """The worker's passes over blocks, or what it puts into a buffer for its ``draws``."""
    round: int = 0
    worker: int = 0
    device: str = "cpu"
    blocks: tuple[int, ...] = ()
    """The numbers of the blocks among the task's values; empty if these are pieces of blocks.

    The values are blocks of x, then of y and of weights in the same order, or blocks with all
    columns. Pieces have all columns.
    """
    starts: tuple[int, ...] = ()
    """The first sample of each block or piece, if passes list their samples; else empty."""
    files: FilePart | None = None
    """The files of all workers of the task, instead of values."""
    draws: Draws | None = None
    """The batches to draw from a buffer that merges do not empty."""
    hyperparameters: Mapping[int, TimedHyperparameters] | None = None
    """The optimizer's hyperparameters by epoch; ``None`` for those of ``build``."""
    attributes: Mapping[str, float] | None = None
    """Attributes of objects that ``trainer.set_hyperparameters`` has set, by paths."""
    check_outputs: bool = False
    """Whether to check the first batch's outputs against the loss, as in a fit's first round."""
    traced: bool = False
    """Whether ``torch.profiler`` traces the worker."""
    name: str = ""
    """What messages call it: the round and the worker, or what is evaluated."""

    @property
    def epoch(self) -> int:
        """The epoch in which the round starts, counted from 0 over all fits."""
        if self.draws is not None:
            return self.draws.epoch
        return self.block_passes[0].epoch if self.block_passes else 0

    @property
    def samples(self) -> int:
        """Number of samples to train on."""
        if self.draws is not None:
            return self.draws.samples
        return sum(block_pass.size for block_pass in self.block_passes)
