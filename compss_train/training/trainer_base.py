"""``TrainerBase``: what a trainer offers besides its fits, to users and to callbacks during a fit."""

import copy
import os
import platform
import socket
from collections.abc import Callable, Mapping
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any, Self, get_args

import torch
from numpy.typing import NDArray
from torch import nn

from compss_train._utils.validation import check_choice, check_count, entry_point
from compss_train.data.locations import is_remote
from compss_train.engines import Engine
from compss_train.exceptions import BadFileError
from compss_train.model import compilation, copies, losses, metrics, optimizers, training_spec
from compss_train.model import parameters as params
from compss_train.model.devices import gpu
from compss_train.model.optimizers import Gradients
from compss_train.model.schedule import Schedule, ScheduleSpec, configured_schedule, make_schedule
from compss_train.model.train_transform import TrainTransform, as_train_transform
from compss_train.model.training_step import Step, no_loss, training_steps
from compss_train.reports.formatting import Table
from compss_train.reports.history import History
from compss_train.training import build_arguments as arguments
from compss_train.training import data_source, description, resuming
from compss_train.training.inference import inference, warn_of_problems
from compss_train.training.session import Session
from compss_train.training.trained_model import TrainedModel
from compss_train.training.training_state import Snapshot, TrainingState

PICKLED = ("net", "optimizer", "loss", "transform", "collate", "compile", "training_step", "validation_step")
"""Arguments that are sent to workers, and that may be impossible to pickle."""


class TrainerBase:
    """A network that tasks evaluate; ``DistributedTrainer`` also trains it, and documents the arguments.

    Callbacks receive it as ``trainer``.
    """

    @entry_point
    def __init__(
        self,
        num_workers: int | None = None,
        *,
        engine: str | Engine = "auto",
        seed: int | None = None,
        threads: int | None = None,
        worker_timeout: float | None = None,
    ) -> None:
        self._model = TrainedModel(seed)
        self._session = Session(self._model, num_workers, engine, threads, worker_timeout)
        self.num_workers, self.threads = self._session.num_workers, self._session.threads

    def __repr__(self) -> str:
        own = f"num_workers={self.num_workers}, engine={self._session.engine_class.name!r}, seed={self.seed}"
        return f"{type(self).__name__}({own}), {self.history!r}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self).partition(', history')[0])}</p>{self.history._repr_html_()}"

    @entry_point
    def build(
        self,
        net: nn.Module | Mapping[str, nn.Module],
        optimizer: optimizers.OptimizerSpec | Mapping[str, optimizers.OptimizerSpec] | None = None,
        loss: str | losses.BatchFunction | None = None,
        metric: metrics.MetricSpec = None,
        num_gpu: int = 0,
        num_nodes: int = 1,
        *,
        transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
        train_transform: TrainTransform | Callable[..., Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        precision: training_spec.Precision = "fp32",
        memory_format: training_spec.MemoryFormat = "contiguous",
        compile: bool | Mapping[str, Any] = False,
        class_weight: losses.ClassWeight | None = None,
        schedule: ScheduleSpec | None = None,
        gradients: Gradients | None = None,
        training_step: Step | str | None = None,
        validation_step: Step | str | None = None,
    ) -> None:
        """Set the network and how it is trained. Starts no process. A second call starts over with a new network.

        Parameters
        ----------
        net:
            Any module; its current parameters are the initial ones. It is copied, never modified. A submodule in
            evaluation mode, such as a frozen BatchNorm, stays in it, unless the whole network is in evaluation
            mode. For a training step also a dict of modules, which it receives as an ``nn.ModuleDict``.
        optimizer:
            A dict such as ``{"optimizer": "adamw", "lr": 1e-3}`` with the lower-case name of one of torch's
            optimizers and its arguments (EDDL's names of them, such as ``epsilon``, are accepted, too), or with a
            torch optimizer class, in which ``"groups"`` may set options of parameters by patterns of names; or a
            torch optimizer over the parameters of ``net``; or a callable that takes ``parameters`` or
            ``named_parameters`` and returns one. Frozen parameters are left out. For a training step that updates
            several optimizers, a dict from names of submodules to optimizers: docs/models.md.
        loss:
            One of EDDL's names, or a callable of (output, target) that returns a mean over the batch.
            ``cross_entropy`` and ``softmax_cross_entropy`` take logits, ``categorical_cross_entropy`` takes
            probabilities, such as the outputs of a softmax. May be left out with a training step.
        metric:
            Like ``loss``; or a metric or collection of torchmetrics (extra ``metrics``); or a list of these, or a
            dict whose keys are their names in the history. docs/watching.md explains what they are measured on.
        num_gpu, num_nodes:
            Number of GPUs that the workers are distributed over, 0 (default) for the CPU; COMPSs tasks use all GPUs
            that its resources declare. ``num_nodes`` is accepted for dislib's scripts, and has no effect.
        transform:
            Callable or module that workers apply to every batch of x, for example to scale uint8 images. Random
            draws are seeded by the batch's position in the epoch: docs/training-options.md.
        train_transform:
            Augmentation: a function of each training batch of x, or of x and y, which it returns as a pair; applied
            before ``transform``, but not in evaluation and prediction. ``TrainTransform`` can call it for each
            sample. Random draws are seeded as for ``transform``: docs/models.md. ``None`` (default) for none.
        collate:
            Makes batches, like torch's ``collate_fn``: a function of a list of samples, (x, y) or x without
            targets, that returns x and y, or x. ``None`` (default) stacks samples, and pads sequences of different
            lengths: x with 0, and integer targets with -100, which losses ignore; docs/models.md.
        precision:
            ``"fp32"`` (default), or ``"bf16"`` or ``"fp16"`` for autocast to bfloat16 or float16; parameters keep
            their dtype. With float16, losses are scaled (``torch.amp.GradScaler``), and steps are skipped if
            gradients overflow; use it on GPUs, as most CPUs are slow with it.
        memory_format:
            ``"contiguous"`` (default), or ``"channels_last"`` for images, which is faster for convolutions.
        compile:
            ``True``, or a dict of arguments such as ``{"mode": "max-autotune"}``, compiles forward and backward
            passes in the workers with ``torch.compile``, for training only; this takes seconds to minutes once.
            Results differ by rounding. Needs a compiler where workers run: docs/training-options.md. ``False`` by
            default.
        class_weight:
            A weight for each class, as a sequence or a dict with class indices as keys, for the training loss (not
            for evaluation): docs/training-options.md. ``None`` (default) for no weights.
        schedule:
            Learning-rate schedule by epoch: a function of the epoch (0, 1, 2, ... over all fits) that returns a
            factor, or a callable that makes a torch scheduler from an optimizer, such as
            ``functools.partial(StepLR, step_size=10)``; or a ``Schedule`` of either, with several steps per epoch:
            docs/training-options.md. ``None`` (default) for a constant learning rate.
        gradients:
            ``Gradients``: clipping, batches per optimizer step, and what happens if a loss is NaN. ``None``
            (default) for its defaults.
        training_step, validation_step:
            A function of the model, the batch ((x, y) or x) and a ``StepContext``, or a method of the module. It
            returns a loss, or a dict with ``"loss"`` and other numbers for the history. A Lightning-style module
            with both and ``configure_optimizers`` needs no optimizer or loss here: docs/models.md. ``None``
            (default) computes ``loss`` from the network's outputs.

        Raises ``ValueError`` for unknown names or optimizer parameters, a network without trainable parameters, and
        missing GPUs; ``TypeError`` for arguments of a wrong type, or that cannot be pickled.
        """
        self._model.require_idle("build")
        check_count("num_gpu", num_gpu, least=0)
        check_count("num_nodes", num_nodes, least=0)
        if isinstance(net, Mapping) and not isinstance(net, nn.Module):
            net = nn.ModuleDict(net)
            net.training = any(module.training for module in net.values())
        gradients = Gradients() if gradients is None else gradients
        arguments.check_network(net)
        factory, training, validation = training_steps(net, optimizer, loss, training_step, validation_step)
        measures = metrics.resolve_metrics(metric)
        loss_function = no_loss if loss is None else losses.resolve_loss(loss)
        check_choice("precision", precision, get_args(training_spec.Precision))
        check_choice("memory_format", memory_format, tuple(training_spec.MEMORY_FORMATS))
        if not isinstance(gradients, Gradients):
            raise TypeError(f"gradients={gradients!r}: give Gradients(...), such as Gradients(clip_norm=1.0)")
        weights = losses.check_class_weight(class_weight)
        if weights is not None and loss is None:
            raise ValueError("class_weight= belongs to loss=, which was not given; weight classes in your step")
        if weights is not None:
            losses.check_weightable(loss_function)
        if transform is not None and not callable(transform):
            raise TypeError(f"transform={transform!r}: give a function of a batch of x, or None")
        if collate is not None and not callable(collate):
            raise TypeError(f"collate={collate!r}: give a function of a list of samples, (x, y) or x, or None")
        augment = as_train_transform(train_transform)
        try:
            own = copies.copy_network(net).cpu()
        except Exception as error:
            arguments.check_copied(net, error)
            raise
        factory = optimizers.bound_to_copy(factory, net, own)
        spec = training_spec.TrainingSpec(
            net=own,
            optimizer=factory,
            loss=loss_function,
            measures=measures,
            transform=transform,
            train_transform=augment,
            collate=collate,
            precision=precision,
            compile=compilation.Compilation.of(compile),
            memory_format=memory_format,
            class_weight=weights,
            gradients=gradients,
            training_step=training,
            validation_step=validation,
        )
        parts = {"metric": measures.metrics, "train_transform": augment and augment.function}
        arguments.check_picklable(**{each: getattr(spec, each) for each in PICKLED}, **parts)
        if precision == "fp16" and any(parameter.dtype == torch.float16 for parameter in own.parameters()):
            raise ValueError("precision='fp16' keeps the parameters in float32, and the network has float16 ones")
        several = isinstance(factory, optimizers.SeveralOptimizers)
        given = [f"accumulate={gradients.accumulate}"] if gradients.accumulate > 1 else []
        given += ["on_nan='skip'"] if gradients.on_nan == "skip" else []
        if several and training is None:
            raise ValueError(
                "several optimizers need training_step=, a function that updates them: docs/models.md has an "
                "example"
            )
        if several and given:
            raise ValueError(
                f"{given[0]} belongs to one optimizer; with several, the training step decides when each is updated"
            )
        given += ["precision='fp16'"] if precision == "fp16" else []
        unsupported = ["one of several optimizers"] if several else given
        arguments.check_optimizer(own, factory, next(iter(unsupported), ""))
        chosen = configured_schedule(own, factory) if schedule is None else Schedule.of(schedule)
        lr_schedule = None if chosen is None else make_schedule(chosen, own, factory)
        self._session.engine_class.check_gpus(num_gpu)
        if num_gpu and gpu() == "mps" and any(each.dtype == torch.float64 for each in own.parameters()):
            raise ValueError("num_gpu: the network is in float64, which Apple's MPS lacks; give net.float()")
        self._model.build(arguments.BuildArguments(spec, num_gpu, chosen, lr_schedule))
        self._session.set_state(TrainingState())

    @property
    def seed(self) -> int:
        """The seed of all random numbers, given or drawn; after ``restore`` that of the checkpoint."""
        return self._model.seed

    @property
    def history(self) -> History:
        """A dict for each round of all fits since ``build``."""
        return self._model.history

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of the loss and the metrics in every record of the history, ``"loss"`` first.

        Measures on validation data have the prefix ``val_``. Raises ``NotBuiltError`` before ``build``.
        """
        return self._model.built.training_spec.measures.names

    @property
    def measures_in_steps(self) -> bool:
        """Whether a training step may add measures of its own to those in ``measures``."""
        return self._model.built.training_spec.training_step is not None

    @property
    def configuration(self) -> dict[str, Any]:
        """The arguments of the trainer, ``build`` and the last fit, and versions, as values that JSON can hold.

        ``build`` and ``fit`` are ``None`` before they are called. Functions are given by name, arrays by shape.
        ``details`` has the attributes of the network, the loss and other objects, by dotted names.
        """
        return {
            "trainer": {
                "num_workers": self.num_workers,
                "engine": self._session.engine_class.name,
                "seed": self.seed,
                "threads": self.threads,
            },
            "build": self._model.described,
            "fit": self._model.last_fit,
            "details": self._model.details,
            "versions": description.versions(),
            "machine": {"host": socket.gethostname(), "platform": platform.platform(), "cores": os.cpu_count()},
        }

    @entry_point
    def evaluate(self, x: Any, y: Any = None, *, batch_size: int | None = None) -> dict[str, Any]:
        """Return ``{"loss": ..., "<metric>": ...}`` over all samples with the global parameters.

        ``x`` and ``y`` are as in ``fit``. ``batch_size`` defaults to that of a ``DataLoader``, or else to 1024.
        """
        built = self._model.built
        built.training_spec.check_evaluable()
        self._model.require_workers("evaluate")
        data = data_source.as_data_source(x, y, self.num_workers, floats=built.training_spec.float_dtype)
        data_source.check_same_coding(self._model.coding, data, "the data")
        with inference(self._session, data, batch_size) as (tasks, parameters):
            refs = tasks.evaluate(parameters)
            measured = [*chain.from_iterable(tasks.engine.fetch(refs, small=True))]
        warn_of_problems(measured, set())
        skipped = [*chain.from_iterable(part.skipped.items() for part in measured)]
        if skipped and not any(part.samples for part in measured):
            raise BadFileError(*skipped[0])
        return built.training_spec.measures.values(measured)

    @entry_point
    def predict(self, x: Any, *, batch_size: int | None = None) -> Any:
        """Return the outputs for all samples in order, with the global parameters.

        An array of shape (samples, ...), or tuples, lists and dicts of such arrays if the network returns them; a
        list with one array per sample if batches of sequences were padded to different lengths. Arguments are as in
        ``evaluate``; targets in ``x`` are left out. Rounding depends on the processor and the size of batches.
        """
        built = self._model.built
        built.training_spec.check_forward()
        self._model.require_workers("predict")
        floats = built.training_spec.float_dtype
        data = data_source.as_data_source(x, None, self.num_workers, targets=False, floats=floats)
        data_source.check_same_coding(self._model.coding, data, "the data")
        with inference(self._session, data, batch_size) as (tasks, parameters):
            return tasks.predict(parameters)

    def model(self, *, averaged: bool = False) -> nn.Module:
        """Return a new copy of the network with the global parameters, on the CPU.

        With ``averaged=True`` they are the average that a fit with ``Merge(averaging=...)`` keeps. Raises
        ``ValueError`` if the last fit kept none.
        """
        net = copies.copy_network(self._model.built.training_spec.net)
        params.load_into(net, self._model.current(averaged=averaged))
        return net

    def get_parameters(self, *, averaged: bool = False) -> params.Parameters:
        """Return a copy of the global parameters, arrays in state_dict order; ``averaged`` as in ``model``."""
        return params.NamedArrays(params.copy_of(self._model.current(averaged=averaged)))

    def summary(self) -> Table:
        """Return a table of the network: names, shapes, numbers and bytes of what it holds, and what is trained.

        The bytes are those of one copy. Each worker has a copy, and in addition gradients and the optimizer's
        state.
        """
        return self._model.built.training_spec.summary()

    def set_parameters(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Replace the global parameters; raise ``ValueError`` if names, shapes or kinds of numbers differ."""
        net = copy.deepcopy(self._model.built.training_spec.net)
        if self._model.fit is not None and self._model.fit.running is not None:
            raise RuntimeError(
                "set_parameters was called during a fit, between rounds; call it at the start or end"
            )
        params.load_into(net, params.as_parameters(parameters))
        self._model.parameters = params.from_module(net)

    def trained_samples(self) -> int | None:
        """Return how many samples workers have reported since the engine started; for displays of progress.

        Repeated tasks count again. Returns ``None`` if the engine does not know, as on COMPSs.
        """
        return self._session.trained_samples()

    def stop(self, reason: str) -> None:
        """End the fit after the current round; for callbacks. ``reason`` becomes the value of ``stopped``.

        Later rounds that were already submitted are cancelled. If workers merge without waiting for each other,
        they are still trained and recorded.
        """
        if self._model.fit is None:
            raise RuntimeError("stop was called while no fit is running; call it from a callback")
        self._model.fit.stopping.request(reason)

    @property
    def stopping(self) -> str | None:
        """Why the running fit is about to stop, or ``None``; for callbacks."""
        return None if self._model.fit is None else self._model.fit.stopping.reason

    @property
    def stopped(self) -> str | None:
        """Why the last fit ended early (the argument of ``stop``, ``"max_time"``, ``"SIGTERM"``), or ``None``."""
        return self._model.stopped

    @property
    def resumed_from(self) -> Path | None:
        """The checkpoint that the current or last fit was resumed from."""
        return self._model.resumed_from

    def snapshot(self) -> Snapshot:
        """Return the state to resume from; in callbacks that after the last round (``Callback.needs_state``)."""
        return resuming.snapshot_of(self._session)

    def checkpoint_bytes(self) -> int:
        """Return about how many bytes a checkpoint of the fit takes: arrays, optimizer states and the history."""
        return resuming.checkpoint_bytes(self._session)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the global parameters to a ``.safetensors`` or ``.npz`` file.

        ``compss_train.load(path, net)`` reads it; a ``.safetensors`` file includes the parameters' SHA-256. The
        file is complete or does not exist. Raises ``ValueError`` for other suffixes, and for names such as
        ``"s3://..."``. To export to ONNX, give ``trainer.model()`` to ``torch.onnx.export``.
        """
        if not is_remote(os.fspath(path)):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        params.save(path, params.from_module(self.model()))

    def close(self) -> None:
        """End the worker processes. The trainer can still be used, and then starts new ones."""
        self._session.end(kill=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._session.end(kill=kind is not None)
