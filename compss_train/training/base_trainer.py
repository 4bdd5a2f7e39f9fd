"""The coordinator: one model and its global parameters, and the engine and session that work on them."""

from __future__ import annotations

import copy
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import nn

from compss_train._utils.validation import check_choice, check_count, check_seed
from compss_train.engines import Engine, Ref, engine_class
from compss_train.exceptions import BadFileError, EngineClosedError, NotBuiltError
from compss_train.model import parameters as params
from compss_train.model.export import export
from compss_train.model.loss_weights import ClassWeight, check_class_weight, check_weightable
from compss_train.model.losses import BatchFunction, resolve_loss
from compss_train.model.lr_schedules import LrSchedule, ScheduleSpec, make_schedule
from compss_train.model.metrics import MetricSpec, resolve_metrics
from compss_train.model.optimizers import OptimizerSpec, optimizer_factory
from compss_train.model.parameters import Parameters
from compss_train.model.training_spec import (
    MEMORY_FORMATS,
    PRECISIONS,
    MemoryFormat,
    OnNan,
    Precision,
    StepOptions,
    TrainingSpec,
)
from compss_train.online.fitting import OnlineFit
from compss_train.reports.history import History
from compss_train.training import worker
from compss_train.training.build_checks import check_network, check_optimizer, check_picklable
from compss_train.training.callback import CallbackList
from compss_train.training.data_source import DataSource, as_data_source
from compss_train.training.description import described_build, described_machine, versions
from compss_train.training.inference import EVALUATION_BATCH, Inference, tell_skipped
from compss_train.training.rounds import Rounds
from compss_train.training.session import Session
from compss_train.training.worker import WorkerState


@dataclass(frozen=True)
class Built:
    """What a trainer trains and measures."""

    training_spec: TrainingSpec
    num_gpu: int
    schedule: ScheduleSpec | None = None
    """As it was given."""
    lr_schedule: LrSchedule | None = field(default=None, repr=False)


class BaseTrainer:
    """Builds a model, evaluates it and predicts with it on many workers, and keeps what fits train.

    How it is trained is for subclasses to say; ``DistributedTrainer`` explains the arguments.
    """

    def __init__(
        self,
        num_workers: int = 10,
        *,
        engine: str | Engine = "auto",
        seed: int | None = None,
        threads: int | None = None,
    ) -> None:
        self.num_workers = check_count("num_workers", num_workers)
        self._given_seed = None if seed is None else check_seed(seed)
        self.seed = secrets.randbits(32) if self._given_seed is None else self._given_seed
        self._engine_class = type(engine) if isinstance(engine, Engine) else engine_class(engine)
        self._own_engine = not isinstance(engine, Engine)
        self._engine = engine if isinstance(engine, Engine) else None
        if threads is None:
            given = None if self._engine is None else self._engine.threads
            threads = given or self._engine_class.thread_share(num_workers)
        self.threads = check_count("threads", threads)
        self._session: Session | None = None
        self._built: Built | None = None
        self._parameters: Parameters = {}
        self._rounds: Rounds | OnlineFit | None = None
        self._told: CallbackList | None = None
        self._epochs = 0
        self._carried: list[WorkerState] | None = None
        self._last_fit: dict[str, Any] | None = None
        self.history = History()
        self._clock: Callable[[], float] = time.monotonic

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
        precision: Precision = "fp32",
        memory_format: MemoryFormat = "contiguous",
        class_weight: ClassWeight | None = None,
        schedule: ScheduleSpec | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        accumulate: int = 1,
        on_nan: OnNan = "raise",
    ) -> None:
        """Say what is trained and how. Starts nothing; a second call starts over with the new network.

        Parameters
        ----------
        net:
            Any module; its present parameters are the initial ones. It is copied, never changed.
        optimizer:
            A dict such as ``{"optimizer": "adam", "lr": 1e-3}`` with EDDL's names (adam, sgd, rmsprop, adagrad,
            adamax, adadelta, nadam) or a torch optimizer class, or a callable that takes parameters.
        loss:
            One of EDDL's names, or a callable of (output, target) that returns a mean over the batch.
        metric:
            As ``loss``, or a metric or collection of torchmetrics (extra ``metrics``), a list of all these, or a
            dict from names in the history; docs/metrics.md explains what they are measured on.
        num_gpu, num_nodes:
            GPUs that the workers are spread over (0, the default, for the CPU), and the nodes that they are in.
        transform:
            Callable or module applied to every batch of x in the worker, for example to scale uint8 images.
        precision:
            ``"fp32"`` (default), or ``"bf16"`` for autocast to bfloat16; parameters stay as they are.
        memory_format:
            ``"contiguous"`` (default), or ``"channels_last"`` for images, which convolutions prefer.
        class_weight:
            A weight for each class, in a sequence or a dict from indices, for the loss that is trained on (not for
            evaluation): docs/training-options.md. ``None`` (default) for no such weights.
        schedule:
            Of the learning rate, by the epoch: a function of the epoch (0, 1, 2, ... over all fits) that returns a
            factor, or what makes a torch scheduler of an optimizer, such as
            ``functools.partial(StepLR, step_size=10)``; docs/training-options.md. ``None`` (default) for none.
        clip_norm, clip_value:
            The largest norm of all gradients together, or the largest size of each element; one of them at most.
            ``None`` (default) clips nothing.
        accumulate:
            Batches of a step, 1 by default: their gradients are averaged over the samples. The last step of an
            epoch, and the last one before workers merge, may have fewer.
        on_nan:
            Where a loss or parameter is NaN or infinite: ``"raise"`` (default) ends the fit; ``"skip"`` makes no
            step of a batch whose loss or gradients are not finite, and counts it; ``"ignore"`` trains on.

        Raises ``ValueError`` for unknown names, optimizer parameters, a network without trainable parameters, and
        GPUs that are not there; ``TypeError`` for what is of another kind, or cannot be pickled.
        """
        self._require_idle("build")
        factory = optimizer_factory(optimizer)
        check_network(net)
        loss_function, measures = resolve_loss(loss), resolve_metrics(metric)
        check_count("num_gpu", num_gpu, least=0)
        check_count("num_nodes", num_nodes, least=0)
        check_choice("precision", precision, PRECISIONS)
        check_choice("memory_format", memory_format, tuple(MEMORY_FORMATS))
        step_options = StepOptions(clip_norm, clip_value, accumulate, on_nan)
        weights = check_class_weight(class_weight)
        if weights is not None:
            check_weightable(loss_function)
        if transform is not None and not callable(transform):
            raise TypeError(f"transform={transform!r}: give a function of a batch of x, or None")
        check_picklable(
            net=net, optimizer=factory, loss=loss_function, metric=measures.metrics, transform=transform
        )
        self._engine_class.check_gpus(num_gpu, num_nodes)
        own = copy.deepcopy(net).cpu()
        check_optimizer(own, factory)
        self._parameters = params.copy_of(params.from_module(own))
        lr_schedule = None if schedule is None else make_schedule(schedule, own, factory)
        training_spec = TrainingSpec(
            own, factory, loss_function, measures, transform, precision, memory_format, weights, step_options
        )
        self._built = Built(training_spec, num_gpu, schedule, lr_schedule)
        self._forget_fits()
        if self._session is not None:
            self._session.close()
            self._session = None

    def _forget_fits(self) -> None:
        self._epochs, self._carried, self._last_fit, self.history = 0, None, None, History()

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of what every record of the history measures: ``"loss"``, then those of the metrics.

        Those of validation data have ``val_`` in front. Raises ``NotBuiltError`` before ``build``.
        """
        return self._require_built().training_spec.measures.names

    def evaluate(self, x: Any, y: Any = None, *, batch_size: int = EVALUATION_BATCH) -> dict[str, Any]:
        """Return ``{"loss": ..., "<metric>": ...}`` over all samples with the global parameters."""
        built = self._require_built()
        self._require_workers("evaluate")
        data = as_data_source(x, y, self.num_workers)
        check_count("batch_size", batch_size)
        with self._inferring(built, data, batch_size) as (inference, parameters):
            refs = inference.evaluate(parameters)
            sums = inference.engine.fetch(refs, small=True)
            inference.engine.delete(refs)
        skipped: dict[str, str] = {}
        tell_skipped(sums, skipped)
        if skipped and not sum(part["samples"] for part in sums):
            raise BadFileError(*next(iter(skipped.items())))
        return built.training_spec.measures.values(sums)

    def predict(self, x: Any, *, batch_size: int = EVALUATION_BATCH) -> NDArray[Any]:
        """Return the outputs for all samples in order, shape (samples, ...), with the global parameters."""
        built = self._require_built()
        self._require_workers("predict")
        data = as_data_source(x, None, self.num_workers, targets=False)
        check_count("batch_size", batch_size)
        with self._inferring(built, data, batch_size) as (inference, parameters):
            return inference.predict(parameters)

    def model(self) -> nn.Module:
        """Return a new copy of the network with the global parameters, on the CPU."""
        net = copy.deepcopy(self._require_built().training_spec.net)
        params.load_into(net, self._current())
        return net

    def get_parameters(self) -> Parameters:
        """Return the global parameters as arrays of the caller's own, in state_dict order."""
        self._require_built()
        return params.copy_of(self._current())

    def set_parameters(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Replace the global parameters; raises ``ValueError`` where names or shapes differ."""
        net = copy.deepcopy(self._require_built().training_spec.net)
        if self._rounds is not None:
            raise RuntimeError(
                "set_parameters was called during a fit, between rounds; call it at the start or end"
            )
        params.load_into(net, parameters)
        self._parameters = params.from_module(net)

    @property
    def configuration(self) -> dict[str, Any]:
        """All that the trainer, ``build`` and the last fit were given, and versions; JSON can hold it.

        ``build`` and ``fit`` are ``None`` where they were not called yet. Functions are told by their names, arrays
        by their shapes.
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

        An ONNX file (extra ``onnx``) has the ``transform`` of ``build`` in it, and takes any number of samples as
        ``x``; ``example`` is a batch of x, such as ``x[:2]``, which shows it what a sample looks like. The file is
        complete or not there. Raises ``ValueError`` for other suffixes, and a network that ONNX cannot hold.
        """
        transform = copy.deepcopy(self._require_built().training_spec.transform)
        export(path, self.model(), example, transform=transform)

    def close(self) -> None:
        """End the worker processes; the trainer can be used again and would start new ones."""
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

    def _carry(self, states: list[WorkerState]) -> None:
        """Have workers go on from these states, those that there are none for from new ones."""
        if self._session is None:
            self._carried = states
        else:
            self._session.take(states, self.seed)

    def _current(self) -> Parameters:
        """Return the global parameters; to a callback, those after the round that it is told of."""
        current = None if self._rounds is None else self._rounds.current()
        return self._parameters if current is None else current

    def _require_idle(self, method: str) -> None:
        if self._told is not None:
            raise RuntimeError(f"{method} was called during a fit, from a callback; call it when the fit has ended")

    def _require_workers(self, method: str) -> None:
        if isinstance(self._rounds, OnlineFit):
            raise RuntimeError(
                f"{method} was called during fit_online, whose tasks take all processes; give fit_online "
                "validation_data=, or use model() in this process"
            )

    def _require_built(self) -> Built:
        if self._built is None:
            raise NotBuiltError("this trainer has no network yet; call build(net, optimizer, loss) first")
        return self._built

    @contextmanager
    def _working(self, built: Built, *, fitting: bool = False) -> Iterator[Session]:
        """Give the session, started if need be.

        An exception that leaves tasks running ends it with them: one in a fit, Ctrl-C, or a dead engine. One in
        ``evaluate`` or ``predict`` does not, since the session holds the workers' states.
        """
        try:
            if self._engine is None:
                self._engine = self._engine_class.start(self.num_workers, self.threads, [worker.__name__])
            if self._session is None:
                devices = [self._engine.device(n, built.num_gpu) for n in range(self.num_workers)]
                self._session = Session(self._engine, built.training_spec, devices, self.seed, self.threads)
                self._session.take(self._carried or [], self.seed)
                self._carried = None
            yield self._session
        except BaseException as error:
            if fitting or not isinstance(error, Exception) or isinstance(error, EngineClosedError):
                self._end(kill=True)
            raise

    @contextmanager
    def _inferring(self, built: Built, data: DataSource, batch_size: int) -> Iterator[tuple[Inference, Ref]]:
        with (
            self._working(built) as session,
            session.inferring(data, batch_size, self._current()) as published,
        ):
            yield published
