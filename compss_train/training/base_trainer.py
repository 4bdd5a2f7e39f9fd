"""``BaseTrainer``: one model, its global parameters, and the engine and session that its tasks run in."""

import copy
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import nn

from compss_train._utils.validation import check_count, check_seed
from compss_train.engines import Engine, Ref, engine_class
from compss_train.engines.base import Resources
from compss_train.exceptions import BadFileError, EngineClosedError, NotBuiltError
from compss_train.model import parameters as params
from compss_train.model.export import export
from compss_train.model.loss_weights import ClassWeight
from compss_train.model.losses import BatchFunction
from compss_train.model.lr_schedules import ScheduleSpec
from compss_train.model.metrics import MetricSpec
from compss_train.model.network_copies import copy_network
from compss_train.model.optimizers import OptimizerSpec
from compss_train.model.parameters import Parameters
from compss_train.model.train_transform import TrainTransform
from compss_train.model.training_spec import (
    MemoryFormat,
    OnNan,
    Precision,
    StepOptions,
)
from compss_train.reports.history import History
from compss_train.training import worker
from compss_train.training.build_arguments import BuildArguments, build_arguments
from compss_train.training.data_source import DataSource, as_data_source
from compss_train.training.description import described_build, described_machine, versions
from compss_train.training.fit_state import ActiveFit
from compss_train.training.session import Session
from compss_train.training.task_submission import (
    EVALUATION_BATCH,
    Inference,
    warn_of_random_transform,
    warn_of_skipped_files,
)
from compss_train.training.training_state import TrainingState


class BaseTrainer:
    """Builds a model, evaluates it and predicts with it on many workers; subclasses train it.

    ``DistributedTrainer`` documents the arguments.
    """

    def __init__(
        self,
        num_workers: int | None = None,
        *,
        engine: str | Engine = "auto",
        seed: int | None = None,
        threads: int | None = None,
    ) -> None:
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
        self.threads = fixed or self._engine_class.thread_share(self.num_workers)
        self._session: Session | None = None
        self._built: BuildArguments | None = None
        self._parameters: Parameters = {}
        self._active: ActiveFit | None = None
        self._epochs = 0
        self._saved_state = TrainingState()
        """What the next session starts from."""
        self._averaged: Parameters | None = None
        """The average of the parameters that the last fit kept, with ``weight_averaging``."""
        self._last_fit: dict[str, Any] | None = None
        self.history = History()
        self._clock: Callable[[], float] = time.monotonic

    def _default_workers(self, threads: int) -> int:
        places = 0 if self._engine is None else self._engine.places(Resources(threads))
        return places or self._engine_class.default_workers(threads)

    def build(
        self,
        net: nn.Module,
        optimizer: OptimizerSpec,
        loss: str | BatchFunction,
        metric: MetricSpec = None,
        num_gpu: int = 0,
        num_nodes: int = 1,
        *,
        transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
        train_transform: TrainTransform | Callable[..., Any] | None = None,
        precision: Precision = "fp32",
        memory_format: MemoryFormat = "contiguous",
        class_weight: ClassWeight | None = None,
        schedule: ScheduleSpec | None = None,
        schedule_steps: int = 1,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        accumulate: int = 1,
        on_nan: OnNan = "raise",
    ) -> None:
        """Set the network and how it is trained. Starts no process; a second call starts over with the new network.

        Parameters
        ----------
        net:
            Any module; its current parameters are the initial ones. It is copied, never changed.
        optimizer:
            A dict such as ``{"optimizer": "adam", "lr": 1e-3}`` with EDDL's names (adam, sgd, rmsprop, adagrad,
            adamax, adadelta, nadam) or a torch optimizer class, or a callable that takes parameters.
        loss:
            One of EDDL's names, or a callable of (output, target) that returns a mean over the batch.
            ``cross_entropy`` and ``softmax_cross_entropy`` take logits, ``categorical_cross_entropy`` takes
            probabilities, such as the outputs of a softmax.
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
        precision:
            ``"fp32"`` (default), or ``"bf16"`` for autocast to bfloat16; parameters stay as they are.
        memory_format:
            ``"contiguous"`` (default), or ``"channels_last"`` for images, which convolutions prefer.
        class_weight:
            A weight for each class, in a sequence or a dict from indices, for the loss that is trained on (not for
            evaluation): docs/training-options.md. ``None`` (default) for no weights.
        schedule:
            Learning-rate schedule by epoch: a function of the epoch (0, 1, 2, ... over all fits) that returns a
            factor, or a callable that makes a torch scheduler of an optimizer, such as
            ``functools.partial(StepLR, step_size=10)``; docs/training-options.md. ``None`` (default) for a constant
            learning rate.
        schedule_steps:
            Number of times an epoch that the schedule is stepped, 1 by default. With more, a function is called
            with fractions of epochs, and a torch scheduler counts steps instead of epochs.
        clip_norm, clip_value:
            The maximum norm of all gradients together, or the maximum absolute value of each element; at most one
            of them. ``None`` (default) does not clip.
        accumulate:
            Batches per optimizer step, 1 by default; their gradients are averaged over the samples. The last step
            of an epoch, and the last one before workers merge, may have fewer.
        on_nan:
            If a loss or parameter is NaN or infinite: ``"raise"`` (default) ends the fit; ``"skip"`` makes no step
            for a batch whose loss or gradients are not finite, and counts it; ``"ignore"`` continues.

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
            precision=precision,
            memory_format=memory_format,
            class_weight=class_weight,
            schedule=schedule,
            schedule_steps=schedule_steps,
            step_options=StepOptions(clip_norm, clip_value, accumulate, on_nan),
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

    def evaluate(self, x: Any, y: Any = None, *, batch_size: int = EVALUATION_BATCH) -> dict[str, Any]:
        """Return ``{"loss": ..., "<metric>": ...}`` over all samples with the global parameters."""
        built = self._require_built()
        self._require_workers("evaluate")
        data = as_data_source(x, y, self.num_workers)
        check_count("batch_size", batch_size)
        with self._inference(built, data, batch_size) as (inference, parameters):
            refs = inference.evaluate(parameters)
            sums = [*chain.from_iterable(inference.engine.fetch(refs, small=True))]
            inference.engine.delete(refs)
        warn_of_random_transform(sums)
        skipped: dict[str, str] = {}
        warn_of_skipped_files(sums, skipped)
        if skipped and not sum(part["samples"] for part in sums):
            raise BadFileError(*next(iter(skipped.items())))
        return built.training_spec.measures.values(sums)

    def predict(self, x: Any, *, batch_size: int = EVALUATION_BATCH) -> NDArray[Any]:
        """Return the outputs for all samples in order, shape (samples, ...), with the global parameters."""
        built = self._require_built()
        self._require_workers("predict")
        data = as_data_source(x, None, self.num_workers, targets=False)
        check_count("batch_size", batch_size)
        with self._inference(built, data, batch_size) as (inference, parameters):
            return inference.predict(parameters)

    def model(self, *, averaged: bool = False) -> nn.Module:
        """Return a new copy of the network with the global parameters, on the CPU.

        With ``averaged=True`` these are the average that a fit with ``weight_averaging`` keeps; ``ValueError`` if
        the last fit kept none.
        """
        net = copy_network(self._require_built().training_spec.net)
        params.load_into(net, self._current_average() if averaged else self._current())
        return net

    def _current_average(self) -> Parameters:
        running = None if self._active is None else self._active.running
        averaged = self._averaged if running is None else running.averaged()
        if averaged is None:
            raise ValueError('the last fit kept no average of the parameters; give fit weight_averaging="ema"')
        return averaged

    def get_parameters(self, *, averaged: bool = False) -> Parameters:
        """Return a copy of the global parameters, arrays in state_dict order; ``averaged`` as in ``model``."""
        self._require_built()
        return params.copy_of(self._current_average() if averaged else self._current())

    def set_parameters(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Replace the global parameters; raise ``ValueError`` if names, shapes or kinds of numbers differ."""
        net = copy.deepcopy(self._require_built().training_spec.net)
        if self._active is not None and self._active.running is not None:
            raise RuntimeError(
                "set_parameters was called during a fit, between rounds; call it at the start or end"
            )
        params.load_into(net, params.as_parameters(parameters))
        self._parameters = params.from_module(net)

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

    def export(self, path: str | os.PathLike[str], example: Any = None) -> None:
        """Write the global parameters to a ``.safetensors`` or ``.npz`` file, or the network to an ``.onnx`` one.

        An ONNX file (extra ``onnx``) includes the ``transform`` of ``build`` and takes any number of samples as
        ``x``; ``example`` is a batch of x, such as ``x[:2]``, to trace the network with. The file is written
        atomically. Raises ``ValueError`` for other suffixes, and for a network that ONNX cannot represent.
        """
        transform = copy.deepcopy(self._require_built().training_spec.transform)
        export(path, self.model(), example, transform=transform)

    def close(self) -> None:
        """End the worker processes; the trainer can still be used, and starts new ones."""
        self._end(kill=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._end(kill=kind is not None)

    def _end(self, *, kill: bool) -> None:
        session, self._session = self._session, None
        if self._engine is not None and (self._own_engine or kill):
            self._engine.shutdown(kill=kill)
        elif session is not None:
            session.close()
        if self._own_engine:
            self._engine = None

    def _set_state(self, state: TrainingState) -> None:
        """Continue from this state; workers beyond those in it start anew."""
        if self._session is None:
            self._saved_state = state
        else:
            self._session.set_state(state, self.seed)

    def _current(self) -> Parameters:
        """Return the global parameters; during a fit, those after the last complete round."""
        running = None if self._active is None else self._active.running
        current = None if running is None else running.current()
        return self._parameters if current is None else current

    def _require_idle(self, method: str) -> None:
        if self._active is not None:
            raise RuntimeError(f"{method} was called during a fit, from a callback; call it when the fit has ended")

    def _require_workers(self, method: str) -> None:
        running = None if self._active is None else self._active.running
        if running is not None and running.occupies_workers:
            raise RuntimeError(
                f"{method} was called during fit_online, whose tasks use all processes; give fit_online "
                "validation_data=, or use model() in this process"
            )

    def _require_built(self) -> BuildArguments:
        if self._built is None:
            raise NotBuiltError("this trainer has no network yet; call build(net, optimizer, loss) first")
        return self._built

    @contextmanager
    def _working(self, built: BuildArguments, *, fitting: bool = False) -> Iterator[Session]:
        """Provide the session; start it if necessary.

        Exceptions that leave tasks running (in a fit, Ctrl-C, a dead engine) end the session. An exception in
        ``evaluate`` or ``predict`` does not, since the session holds the workers' states.
        """
        try:
            if self._engine is None:
                self._engine = self._engine_class.start(self.num_workers, self.threads, [worker.__name__])
            if self._session is None:
                devices = [self._engine.device(n, built.num_gpu) for n in range(self.num_workers)]
                self._session = Session(
                    engine=self._engine,
                    training_spec=built.training_spec,
                    devices=devices,
                    seed=self.seed,
                    threads=self.threads,
                    num_gpu=built.num_gpu,
                )
                self._session.set_state(self._saved_state, self.seed)
                self._saved_state = TrainingState()
            yield self._session
        except BaseException as error:
            if fitting or not isinstance(error, Exception) or isinstance(error, EngineClosedError):
                self._end(kill=True)
            raise

    @contextmanager
    def _inference(
        self, built: BuildArguments, data: DataSource, batch_size: int
    ) -> Iterator[tuple[Inference, Ref]]:
        with (
            self._working(built) as session,
            session.inference_with(self._current(), data, batch_size) as published,
        ):
            yield published
