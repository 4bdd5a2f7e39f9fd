"""``BuildableTrainer``: one model and its global parameters, and the engine and session that it is built for."""

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from compss_train._utils.validation import check_count, check_seconds, check_seed
from compss_train.engines import Engine, engine_class
from compss_train.engines.base import Resources
from compss_train.exceptions import NotBuiltError
from compss_train.model import parameters as params
from compss_train.model.gradients import Gradients
from compss_train.model.loss_weights import ClassWeight
from compss_train.model.losses import BatchFunction
from compss_train.model.metrics import MetricSpec
from compss_train.model.optimizers import OptimizerSpec
from compss_train.model.parameters import Parameters
from compss_train.model.schedule import ScheduleSpec
from compss_train.model.train_transform import TrainTransform
from compss_train.model.training_spec import (
    MemoryFormat,
    Precision,
)
from compss_train.model.training_step import Step
from compss_train.reports.history import History
from compss_train.training.build_arguments import BuildArguments, build_arguments
from compss_train.training.description import described_build, described_machine, versions
from compss_train.training.fit_state import ActiveFit
from compss_train.training.session import Session
from compss_train.training.training_state import TrainingState

MAX_WORKERS = 100_000
"""The most workers of a trainer: each has a state, and its place in the plan of every round."""


class BuildableTrainer:
    """Builds a model; subclasses evaluate and train it. ``DistributedTrainer`` documents the arguments."""

    def __init__(
        self,
        num_workers: int | None = None,
        *,
        engine: str | Engine = "auto",
        seed: int | None = None,
        threads: int | None = None,
        worker_timeout: float | None = None,
    ) -> None:
        self.worker_timeout = None if worker_timeout is None else check_seconds("worker_timeout", worker_timeout)
        self._seed_argument = None if seed is None else check_seed(seed)
        self.seed = secrets.randbits(32) if self._seed_argument is None else self._seed_argument
        self._engine_class = type(engine) if isinstance(engine, Engine) else engine_class(engine)
        self._own_engine = not isinstance(engine, Engine)
        self._engine = engine if isinstance(engine, Engine) else None
        own = None if self._engine is None else self._engine.threads
        fixed = own if threads is None else check_count("threads", threads)
        if num_workers is None:
            num_workers = self._default_workers(fixed or 1)
        self.num_workers = check_count("num_workers", num_workers)
        if self.num_workers > MAX_WORKERS:
            raise ValueError(f"num_workers={num_workers}: give at most {MAX_WORKERS} workers, one a block or fewer")
        self.threads = fixed or self._engine_class.thread_share(self.num_workers)
        self._session: Session | None = None
        self._built: BuildArguments | None = None
        self._parameters: Parameters = {}
        self._active: ActiveFit | None = None
        self._epochs = 0
        self._saved_state = TrainingState()
        """What the next session starts from."""
        self._averaged: Parameters | None = None
        """The average of the parameters that the last fit kept, with ``Merge(averaging=...)``."""
        self._last_fit: dict[str, Any] | None = None
        self.history = History()
        self._clock: Callable[[], float] = time.monotonic

    def _default_workers(self, threads: int) -> int:
        places = 0 if self._engine is None else self._engine.places(Resources(threads))
        return places or self._engine_class.default_workers(threads)

    def build(
        self,
        net: nn.Module | Mapping[str, nn.Module],
        optimizer: OptimizerSpec | Mapping[str, OptimizerSpec] | None = None,
        loss: str | BatchFunction | None = None,
        metric: MetricSpec = None,
        num_gpu: int = 0,
        num_nodes: int = 1,
        *,
        transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
        train_transform: TrainTransform | Callable[..., Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        precision: Precision = "fp32",
        memory_format: MemoryFormat = "contiguous",
        compile: bool | Mapping[str, Any] = False,
        class_weight: ClassWeight | None = None,
        schedule: ScheduleSpec | None = None,
        gradients: Gradients | None = None,
        training_step: Step | str | None = None,
        validation_step: Step | str | None = None,
    ) -> None:
        """Set the network and how it is trained. Starts no process; a second call starts over with the new network.

        Parameters
        ----------
        net:
            Any module; its current parameters are the initial ones. It is copied, never changed. A dict of modules
            for training steps, which get them as an ``nn.ModuleDict``.
        optimizer:
            A dict such as ``{"optimizer": "adam", "lr": 1e-3}`` with EDDL's names (adam, sgd, rmsprop, adagrad,
            adamax, adadelta, nadam) or a torch optimizer class, or a callable that takes parameters. A dict from
            names of submodules to such optimizers for a training step that updates each: docs/models.md.
        loss:
            One of EDDL's names, or a callable of (output, target) that returns a mean over the batch.
            ``cross_entropy`` and ``softmax_cross_entropy`` take logits, ``categorical_cross_entropy`` takes
            probabilities, such as the outputs of a softmax. May be left out with a training step.
        metric:
            As ``loss``, or a metric or collection of torchmetrics (extra ``metrics``), a list of all these, or a
            dict from names in the history; docs/metrics.md explains what they are measured on.
        num_gpu, num_nodes:
            GPUs that the workers are distributed over (0, the default, for the CPU), at most so many tasks at a
            time on COMPSs; and the nodes that have them, compared with those of COMPSs.
        transform:
            Callable or module that workers apply to every batch of x, for example to scale uint8 images; on
            training data in a thread beside the steps. Random draws are seeded by the batch's place in the epoch:
            docs/training-options.md.
        train_transform:
            Augmentation: a function of each training batch of x, or of x and y, which it returns as a pair, before
            ``transform``; evaluation, prediction and ONNX leave it out. ``TrainTransform`` has it called for each
            sample. Random draws as for ``transform``: docs/models.md. ``None`` (default) for none.
        collate:
            Makes batches, as torch's ``collate_fn``: a function of a list of samples, (x, y) or x where there is no
            y, that returns x and y, or x. ``None`` (default) stacks them, and pads sequences of different lengths,
            those of x with 0 and integer targets with -100, which losses ignore: docs/models.md.
        precision:
            ``"fp32"`` (default), or ``"bf16"`` or ``"fp16"`` for autocast to bfloat16 or float16; parameters stay
            as they are. With float16 losses are scaled (``torch.amp.GradScaler``), and steps left out where
            gradients overflow; it is for GPUs, and slow on most CPUs.
        memory_format:
            ``"contiguous"`` (default), or ``"channels_last"`` for images, which convolutions prefer.
        compile:
            ``True``, or a dict of arguments such as ``{"mode": "max-autotune"}``, to let ``torch.compile`` compile
            forward and backward passes in the workers, which takes seconds to minutes once, in training only.
            Results differ by rounding. Without a compiler the network runs as it is, with a warning:
            docs/training-options.md. ``False`` by default.
        class_weight:
            A weight for each class, in a sequence or a dict from indices, for the loss that is trained on (not for
            evaluation): docs/training-options.md. ``None`` (default) for no weights.
        schedule:
            Learning-rate schedule by epoch: a function of the epoch (0, 1, 2, ... over all fits) that returns a
            factor, or a callable that makes a torch scheduler of an optimizer, such as
            ``functools.partial(StepLR, step_size=10)``; or a ``Schedule`` of it, with several steps an epoch:
            docs/training-options.md. ``None`` (default) for a constant learning rate.
        gradients:
            ``Gradients``: clipping, batches per optimizer step, and what happens if a loss is NaN. ``None``
            (default) for its defaults.
        training_step, validation_step:
            A function of the model, the batch, (x, y) or x, and a ``StepContext``, or a method of the module; it
            returns a loss, or a dict with ``"loss"`` and other numbers, which records contain. A module in the
            style of Lightning has both, and ``configure_optimizers``, and needs neither optimizer nor loss here:
            docs/models.md. ``None`` (default): outputs of the network, and ``loss``.

        Raises ``ValueError`` for unknown names or optimizer parameters, a network without trainable parameters, and
        missing GPUs; ``TypeError`` for arguments of a wrong type, or that cannot be pickled.
        """
        self._require_idle("build")
        check_count("num_gpu", num_gpu, least=0)
        check_count("num_nodes", num_nodes, least=0)
        built = build_arguments(
            net,
            optimizer,
            loss,
            metric,
            num_gpu=num_gpu,
            transform=transform,
            train_transform=train_transform,
            collate=collate,
            precision=precision,
            memory_format=memory_format,
            compile=compile,
            class_weight=class_weight,
            schedule=schedule,
            gradients=Gradients() if gradients is None else gradients,
            training_step=training_step,
            validation_step=validation_step,
        )
        self._engine_class.check_gpus(num_gpu, num_nodes)
        self._built = built
        self._parameters = params.copy_of(params.from_module(built.training_spec.net))
        self._reset_fits()
        if self._session is not None:
            self._session.close()
            self._session = None

    def _reset_fits(self) -> None:
        self._epochs, self._last_fit, self.history = 0, None, History()
        self._saved_state, self._averaged = TrainingState(), None

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of the loss and the metrics in every record of the history, ``"loss"`` first.

        Those of validation data have the prefix ``val_``. Raises ``NotBuiltError`` before ``build``.
        """
        return self._require_built().training_spec.measures.names

    @property
    def measures_in_steps(self) -> bool:
        """Whether a training step may add measures of its own to those in ``measures``."""
        return self._require_built().training_spec.training_step is not None

    @property
    def configuration(self) -> dict[str, Any]:
        """The arguments of the trainer, ``build`` and the last fit, and versions, as values that JSON can hold.

        ``build`` and ``fit`` are ``None`` before they are called. Functions are given by name, arrays by shape.
        """
        return {
            "trainer": {
                "num_workers": self.num_workers,
                "engine": self._engine_class.name,
                "seed": self.seed,
                "threads": self.threads,
            },
            "build": None if self._built is None else described_build(self._built),
            "fit": self._last_fit,
            "versions": versions(),
            "machine": described_machine(),
        }

    def _require_idle(self, method: str) -> None:
        if self._active is not None:
            raise RuntimeError(f"{method} was called during a fit, from a callback; call it when the fit has ended")

    def _require_built(self) -> BuildArguments:
        if self._built is None:
            raise NotBuiltError("this trainer has no network yet; call build(net, optimizer, loss) first")
        return self._built
