"""``DistributedTrainer``: builds a model, fits it on many workers, evaluates, and predicts."""

import copy
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from html import escape
from pathlib import Path
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import nn

from compss_train._utils.validation import (
    Suggesting,
    check_choice,
    check_count,
    check_keywords,
    entry_point,
)
from compss_train.buffers import BufferSpec
from compss_train.callbacks import Callback
from compss_train.callbacks.progress import show_remarks, with_progress
from compss_train.data import FileDataset
from compss_train.data.locations import is_remote
from compss_train.engines import Engine
from compss_train.exceptions import BadFileError
from compss_train.model import compilation, losses, optimizers, training_spec
from compss_train.model import parameters as params
from compss_train.model.class_probabilities import (
    ProbabilityKind,
    kind_of_probabilities,
    known_probabilities_for,
    of_arrays,
)
from compss_train.model.class_weights import ClassWeight, check_class_weight
from compss_train.model.counted import Counted
from compss_train.model.gradients import Gradients
from compss_train.model.lightning_style import configured_schedule
from compss_train.model.net_optimizers import bound_to_copy
from compss_train.model.network_uses import check_optimizers_unused, given_optimizers
from compss_train.model.output_loss import OUTPUT_LOSS, count_for
from compss_train.model.resolving import (
    MetricSpec,
    resolve_loss,
    resolve_metrics,
    resolve_steps,
)
from compss_train.model.schedule import Schedule, ScheduleSpec
from compss_train.model.task_globals import check_network_unused
from compss_train.model.train_transform import TrainTransform, as_train_transform
from compss_train.model.training_step import Step, no_loss
from compss_train.online.options import OnlineOptions, Simulations, online_merge, pairing_of
from compss_train.reports.formatting import Table
from compss_train.reports.history import History
from compss_train.training import description, first_batch, network_checks, resuming, rounds
from compss_train.training.build_arguments import BuildArguments
from compss_train.training.callback import AnyCallback
from compss_train.training.callback_list import CallbackList, check_callbacks
from compss_train.training.data_source import as_data_source, check_same_coding
from compss_train.training.fit import FitOptions, ShuffleLike
from compss_train.training.fit_of_epochs import FitOfEpochs, prepare_fit
from compss_train.training.hyperparameters import HyperparameterChanges
from compss_train.training.inference import inference, validation_source, warn_of_problems
from compss_train.training.merge import Merge, MergeLike
from compss_train.training.named_fits import NamedFits
from compss_train.training.session import Session
from compss_train.training.snapshot import Snapshot
from compss_train.training.stopping import Stopping
from compss_train.training.trained_model import TrainedModel
from compss_train.training.training_state import TrainingState
from compss_train.training.unseen_changes import UnseenChanges, held_by_functions, warn_of_changes


class DistributedTrainer(NamedFits[params.Parameters], Suggesting):
    """Trains a PyTorch model as ``num_workers`` copies that are merged from time to time.

    Parameters
    ----------
    num_workers:
        Copies of the model, at most 100,000, each with a share of the blocks; results depend on it.
        By default as many as can run at once: physical cores, slots of the engine or units of
        COMPSs, divided by ``threads``.
    engine:
        ``"auto"`` (default: ``COMPSS_TRAIN_ENGINE``, else ``"compss"`` in a COMPSs application,
        ``"ray"`` if ``RAY_ADDRESS`` is set, and ``"local"`` otherwise), ``"serial"`` (in this
        process, for debugging), ``"local"`` (processes on this machine), ``"compss"`` (PyCOMPSs
        tasks), ``"ray"`` (Ray tasks), or an ``Engine``, which only the caller shuts down: several
        trainers can share it, also in several threads (not on COMPSs), and what fails ends its own
        tasks only.
    seed:
        Integer from 0 to 2**63 - 1 that determines the order of samples and all random numbers in
        the workers; ``None`` (default) draws one, which ``trainer.seed`` returns.
    threads:
        Intra-op threads of each task (under COMPSs, its computing units); by default the cores
        divided among the workers, or the threads of the given engine. Results may differ by
        rounding for another number.
    worker_timeout:
        Seconds without a batch after which a worker's process counts as stopped or hung in ``fit``:
        it is ended, and its task runs again in another process, up to 4 times in all. Allow more
        time than the slowest batch and the slowest merge take. ``None`` (default) only warns of
        such processes: docs/long-runs.md.

    Worker processes start with the first call that needs them, and are kept for later ones, with
    each worker's optimizer and random state. ``close()``, the end of ``with`` and exceptions in
    fits end those of its own engine.

    Attributes: ``history`` (a dict for each round), ``configuration``, ``seed``, ``num_workers``,
    ``threads``; ``clock``, a function that returns seconds, by which ``max_time`` is measured.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)

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
        self._session = Session(
            self._model, num_workers, engine, threads=threads, worker_timeout=worker_timeout
        )
        self.num_workers = self._session.num_workers
        self.threads = self._session.threads

    def __repr__(self) -> str:
        engine = self._session.engine_class.name
        arguments = f"num_workers={self.num_workers}, engine={engine!r}, seed={self.seed}"
        return f"{type(self).__name__}({arguments}), {self.history!r}"

    def _repr_html_(self) -> str:
        name = repr(self).partition(", history")[0]
        return f"<p>{escape(name)}</p>{self.history._repr_html_()}"

    @entry_point
    def build(
        self,
        net: nn.Module | Mapping[str, nn.Module],
        optimizer: optimizers.OptimizerSpec | Mapping[str, optimizers.OptimizerSpec] | None = None,
        loss: str | losses.BatchFunction | Counted | None = None,
        metric: MetricSpec = None,
        num_gpu: int = 0,
        num_nodes: int = 1,
        *,
        transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
        train_transform: TrainTransform | Callable[..., Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        precision: training_spec.Precision = "fp32",
        memory_format: training_spec.MemoryFormat = "contiguous",
        compile: bool | Mapping[str, Any] = False,
        class_weight: ClassWeight | None = None,
        schedule: ScheduleSpec | None = None,
        gradients: Gradients | None = None,
        training_step: Step | str | None = None,
        validation_step: Step | str | None = None,
    ) -> None:
        """Set the network and how it is trained.

        Starts no process. A second call starts over with a new network.

        Parameters
        ----------
        net:
            Any module; its current parameters are the initial ones. It is copied, never modified. A
            submodule in evaluation mode, such as a frozen BatchNorm, stays in it, unless the whole
            network is in evaluation mode. For a training step also a dict of modules, which it
            receives as an ``nn.ModuleDict``.
        optimizer:
            A dict such as ``{"optimizer": "adamw", "lr": 1e-3}`` with the lower-case name of one of
            torch's optimizers and its arguments (EDDL's names of them, such as ``epsilon``, are
            accepted, too), or with a torch optimizer class, in which ``"groups"`` may set options
            of parameters by patterns of names; or a torch optimizer over the parameters of ``net``;
            or a callable that takes ``parameters`` or ``named_parameters`` and returns one. Frozen
            parameters are left out. For a training step that updates several optimizers, a dict
            from names of submodules to optimizers: docs/models.md.
        loss:
            One of EDDL's names, or a callable of (output, target) that returns a mean over the
            batch. ``cross_entropy`` and ``softmax_cross_entropy`` take logits,
            ``categorical_cross_entropy`` takes probabilities, such as the outputs of a softmax.
            ``Counted(function, count=...)`` is a mean over what the count says.
            ``"output.loss"`` is the loss that the network returns, which gets y as ``labels=``:
            docs/language-models.md. May be left out with a training step.
        metric:
            Like ``loss``; or a metric or collection of torchmetrics (extra ``metrics``); or
            ``Whole(function)`` of all validation samples; or a list of these, or a dict whose keys
            are their names in the history. docs/watching.md explains what they are measured on.
        num_gpu, num_nodes:
            Number of GPUs that the workers are distributed over, 0 (default) for the CPU; COMPSs
            tasks use all GPUs that its resources declare. ``num_nodes`` is accepted for dislib's
            scripts, and has no effect.
        transform:
            Callable or module that workers apply to every batch of x, for example to scale uint8
            images. Random draws are seeded by the batch's position in the epoch: docs/models.md.
        train_transform:
            Augmentation: a function of each training batch of x, or of x and y, which it returns as
            a pair; applied before ``transform``, but not in evaluation and prediction.
            ``TrainTransform`` can call it for each sample. Random draws are seeded as for
            ``transform``: docs/models.md. ``None`` (default) for none.
        collate:
            Makes batches, like torch's ``collate_fn``: a function of a list of samples, (x, y) or x
            without targets, that returns x and y, or x (one ``PackedSequence``); for ``predict(x)``
            it gets (x, y) with zero in place of y, or x where it does not take that. Collators of
            Hugging Face get samples as dicts. With ``loss``, a dict that is made without y is
            inputs and ``labels``, and a pair is x and y. ``None`` (default) stacks samples, and
            pads sequences of different lengths: x with 0, integer targets with -100, which losses
            ignore.
        precision:
            ``"fp32"`` (default), or ``"bf16"`` or ``"fp16"`` for autocast to bfloat16 or float16;
            parameters keep their dtype. With float16, losses are scaled (``torch.amp.GradScaler``),
            and steps are skipped if gradients overflow; use it on GPUs, as most CPUs are slow with
            it.
        memory_format:
            ``"contiguous"`` (default), or ``"channels_last"`` for images, which is faster for
            convolutions.
        compile:
            ``True``, or a dict of arguments such as ``{"mode": "max-autotune"}``, compiles forward
            and backward passes in the workers with ``torch.compile``, for training only, in seconds
            to minutes once. Results differ by rounding; needs a compiler where workers run:
            docs/training-options.md. ``False`` by default.
        class_weight:
            A weight for each class, as a sequence or a dict with class indices as keys, for the
            training loss (not for evaluation): docs/training-options.md. Keys may be the names of
            the classes that y has in a frame or in files. ``None`` (default) for no weights.
        schedule:
            Learning-rate schedule by epoch: a function of the epoch (0, 1, 2, ... over all fits)
            that returns a factor, or a callable that makes a torch scheduler from an optimizer,
            such as ``functools.partial(StepLR, step_size=10)``; or a ``Schedule`` of either, with
            several steps per epoch: docs/training-options.md. ``None`` (default) for a constant
            learning rate.
        gradients:
            ``Gradients``: clipping, batches per optimizer step, and what follows a loss of NaN. By
            default its own.
        training_step, validation_step:
            A function of the model, the batch and a ``StepContext``, or a method of the module. The
            batch is a tuple, (x, y) or (x,), as of a ``DataLoader`` over a ``TensorDataset``;
            without y, what ``collate`` returns is passed unchanged. The step returns a loss, or a
            dict with ``"loss"`` and other numbers; ``"count"`` says what the loss is a mean over,
            if that is not the samples. A Lightning-style module with both and
            ``configure_optimizers`` needs no optimizer or loss here: docs/models.md. ``None``
            (default) computes ``loss`` from the network's outputs.

        Raises ``ValueError`` for unknown names or optimizer parameters, a network without trainable
        parameters, and missing GPUs; ``TypeError`` for arguments of a wrong type, or that cannot be
        pickled.
        """
        self._model.require_idle("build")
        check_count("num_nodes", num_nodes, least=0)
        original = network_checks.checked_network(net)
        function = loss.function if isinstance(loss, Counted) else loss
        factory, training, validation = resolve_steps(
            original,
            optimizer,
            function,
            training_step=training_step,
            validation_step=validation_step,
        )
        network = network_checks.copied_network(original)
        factory = bound_to_copy(factory, original, network)
        spec = training_spec.TrainingSpec(
            net=network,
            optimizer=factory,
            loss=no_loss if function is None else resolve_loss(function),
            loss_count=_loss_count(loss, network),
            measures=resolve_metrics(metric, function),
            transform=transform,
            train_transform=as_train_transform(train_transform),
            collate=collate,
            precision=precision,
            compile=compilation.Compilation.of(compile),
            memory_format=memory_format,
            class_weight=check_class_weight(class_weight),
            gradients=Gradients() if gradients is None else gradients,
            training_step=training,
            validation_step=validation,
        )
        check_network_unused(spec.global_users, original)
        optimizers_given = given_optimizers(optimizer)
        functions = {name: root for name, root in spec.roots().items() if root is not network}
        check_optimizers_unused(functions, optimizers_given)
        spec = spec.made_from(original)
        if schedule is None:
            lr_schedule = configured_schedule(network, factory)
        else:
            lr_schedule = Schedule.of(schedule)
        built = BuildArguments(spec, num_gpu, lr_schedule)
        self._session.engine_class.check_gpus(num_gpu)
        self._model.start_over(built, original, optimizers_given)
        self._session.set_state(TrainingState())

    @entry_point
    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        num_epochs: int,
        batch_size: int | None = None,
        num_batches_per_worker: int | None = None,
        merge: MergeLike = "synchronous",
        shuffle: ShuffleLike = "blocks",
        shuffle_block_data: bool = True,
        bucket_by_length: bool | str = False,
        buffer: BufferSpec | None = None,
        sample_weight: Any = None,
        validation_data: tuple[Any, Any] | FileDataset | None = None,
        callbacks: Sequence[AnyCallback] = (),
        progress: bool = True,
        resume: str | os.PathLike[str] | bool = False,
        max_time: float | timedelta | None = None,
    ) -> params.Parameters:
        """Train, and return the final global parameters, arrays in state_dict order.

        A second fit continues the first: parameters, optimizer and random states, and the count of
        epochs. Before local processes start, two samples are tried in this one: errors of the model
        and the loss come at once.

        Parameters
        ----------
        x, y:
            Blocked tensors with the same grid and block sizes (also dislib's), or arrays, which are
            cut into one block per worker, or like the other argument if that one is blocked; or a
            ``FileDataset`` as ``x``, which the workers read, whose files are the blocks, or parts
            of files if these are fewer than workers. Pass Pandas and polars frames, torch and
            Hugging Face data sets and a ``DataLoader`` directly: docs/data.md. Without ``y``, each
            transformed batch is its own target. Both may be tuples, lists or dicts of these:
            docs/models.md. Arrays are not copied: do not change them during the fit.
        num_epochs:
            Number of passes over all samples, at most 10**9 (to train until ``max_time``).
        batch_size:
            Maximum number of samples in a batch. Batch sizes within a block differ by at most one.
            Give this or ``num_batches_per_worker``; ``merge="auto"`` needs neither.
        num_batches_per_worker:
            Number of batches that each block is cut into, instead of ``batch_size``.
        merge:
            When and how workers merge: a ``Merge``, or its kind by name. ``"synchronous"``
            (default) averages all workers at the end of every epoch, ``"commutative"`` those that
            have arrived, ``"parameter_server"`` adds each worker's change, layer by layer;
            ``"auto"`` and the other presets also choose the options. ``configuration["fit"]`` has
            the options used.
        shuffle:
            ``"blocks"`` (default) distributes whole blocks to the workers in a new order each
            epoch; ``"total"`` permutes all samples (not for files); a ``PartialShuffle``
            distributes equal shares of blocks in a new order and mixes their samples in pools while
            they are read in sequence; ``None`` keeps the order.
        shuffle_block_data:
            Whether to shuffle the samples within each block in every epoch; true by default.
        bucket_by_length:
            ``True`` makes each batch of samples of similar lengths, which need less padding: the
            samples of 50 batches of a block at a time are sorted by length and cut into batches,
            which come in random order. Where several columns hold sequences of different lengths,
            give the name of the one whose lengths count: ``"x"``, ``"y"`` or, for example,
            ``"x['text']"``. ``False`` (default) does not look at lengths.
        buffer:
            ``None`` (default) trains on one block after another. With a ``BufferSpec`` each
            worker's samples pass through a buffer, so that batches mix blocks, and files are read
            ahead; docs/buffers.md compares the kinds.
        sample_weight:
            A weight for each sample in the training loss, finite and at least 0: blocks that match
            ``x``, or an array of shape (samples,) or (samples, 1). For files use ``FileDataset(...,
            weight=NAME)``. ``None`` (default) for no weights; docs/training-options.md.
        validation_data:
            (x, y) or files on which the global parameters are evaluated after every round, as
            ``val_loss`` and so on. Commutative merging then applies all updates of a round before
            the next round's. ``None`` (default) for none.
        callbacks:
            ``Callback`` objects, called in this process, and ``WorkerCallback`` objects, called in
            the workers.
        progress:
            Whether to show progress (default), on standard error (in notebooks on standard output):
            a bar in a terminal or notebook, elsewhere a line per round. A ``ProgressBar`` or
            ``RoundLines`` in the callbacks replaces it.
        resume:
            Folder of checkpoints, of which the newest good one is used, or a single checkpoint. The
            rest of the interrupted fit is trained and, if workers merge synchronously, gives the
            bits of a fit without interruption. A warning names damaged checkpoints. ``True`` uses
            the folder of the ``Checkpoint`` among the callbacks, and starts a new fit if it holds
            no checkpoint yet. ``False`` (default) starts a new fit.
        max_time:
            Time limit of the fit: seconds or a ``timedelta``; ``None`` (default) for none. Judging
            by earlier rounds, the fit stops before a round that would exceed it. If a round exceeds
            it anyway, it is cancelled (on COMPSs the fit ends then). The limit of ``runcompss
            --wall_clock_limit`` also applies, less a twentieth of it, at most 60 s.

        Raises ``ValueError`` for unsuitable options and data, ``NotBuiltError`` before ``build``,
        ``DivergedError`` if a loss or parameter becomes NaN or infinite, ``WorkerLostError`` if a
        process dies repeatedly, and the exceptions of the model, with the worker's traceback;
        ``BadCheckpointError``, ``FileNotFoundError`` and ``ValueError`` for a checkpoint that
        cannot be resumed. Warns if there are more workers than blocks, and if outputs do not suit
        the loss. SIGTERM stops a fit as ``max_time`` does, and then ends the program with
        ``SystemExit``, unless the program handles SIGTERM itself. After an exception or Ctrl-C the
        parameters are those of the last complete round. With commutative merging they include later
        changes; on COMPSs they are then those before the fit.
        """
        options = FitOptions(
            num_epochs=num_epochs,
            batch_size=batch_size,
            num_batches_per_worker=num_batches_per_worker,
            merge=Merge.of(merge),
            shuffle=shuffle,
            shuffle_block_data=shuffle_block_data,
            bucket_by_length=bucket_by_length,
            buffer=buffer,
            sample_weight=sample_weight,
            validation_data=validation_data,
            callbacks=callbacks,
            progress=progress,
            resume=resume,
            max_time=max_time,
        )
        fit = self._prepared("fit", x, y, options=options)
        if self._session.must_start:
            first_batch.find_mistakes(fit)
        rounds.run(fit)
        return self._fitted()

    @entry_point
    def check_fit(self, x: Any, y: Any = None, *, num_epochs: int, **options: Any) -> None:
        """Check the arguments of a fit without running it: what ``fit`` checks, and one batch.

        Takes the arguments of ``fit``, with the same errors, warnings and first lines. The first
        batch is trained here, on the first GPU with ``num_gpu``, or the CPU if this process has
        none; its errors are then warnings, because some operations need a GPU. No worker starts, no
        file is written, and the trainer is unchanged.
        """
        check_keywords(self.fit, options)
        options["merge"] = Merge.of(options.get("merge", "synchronous"))
        asked = FitOptions(num_epochs=num_epochs, **options)
        fit = self._prepared("check_fit", x, y, options=asked)
        first_batch.try_fit(fit)
        show_remarks(fit.callbacks.callbacks, fit.remarks)

    def _prepared(self, method: str, x: Any, y: Any, options: FitOptions) -> FitOfEpochs:
        """Return the fit that ``method`` needs, after all checks that need no task."""
        self._model.require_idle(method)
        callbacks = self._callback_list(
            options.callbacks,
            progress=options.progress,
            validated=options.validation_data is not None,
            averaged=options.merge.averaging is not None,
        )
        stopping = self._stopping(options.max_time)
        return prepare_fit(
            self._session, x, y, options=options, callbacks=callbacks, stopping=stopping
        )

    def _callback_list(
        self,
        callbacks: Sequence[AnyCallback],
        *,
        progress: bool,
        validated: bool,
        averaged: bool = False,
        online: bool = False,
    ) -> CallbackList:
        """Return the callbacks of a fit, with one that shows progress if it is to be shown."""
        check_choice("progress", progress, (True, False))
        checked: Sequence[AnyCallback] = check_callbacks(callbacks)
        if progress:
            checked = with_progress(checked)
        callback_list = CallbackList(
            checked, self, validated=validated, averaged=averaged, online=online
        )
        if self._model.held is not None:
            warn_of_changes(self._model.held, self._model.built.training_spec)
        for callback in callback_list.in_workers:
            self._model.check_callback(callback)
        if callback_list.of_user:
            callback_list.untrained_uses = self._model.untrained_uses(callback_list.of_user)
            callback_list.unseen_changes = UnseenChanges(self._model.built.training_spec)
        return callback_list

    def _stopping(self, max_time: float | timedelta | None) -> Stopping:
        return Stopping(max_time, self.clock, self._session.engine_class.time_left())

    @entry_point
    def fit_online(
        self,
        simulations: Simulations,
        *,
        buffer: BufferSpec,
        batch_size: int,
        merge: MergeLike = "parameter_server",
        max_batches: int | None = None,
        validation_data: tuple[Any, Any] | FileDataset | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
        max_time: float | timedelta | None = None,
        record_every: float = 1.0,
        checkpoint_every: float | None = 60.0,
        resume: str | os.PathLike[str] | bool = False,
    ) -> params.Parameters:
        """Train while simulations run, and return the final global parameters.

        They are arrays in state_dict order. Simulations run as tasks and send their samples to
        ``num_workers`` workers, which hold them in buffers and train on batches drawn from these,
        until all simulations have ended and the buffers are empty. Only checkpoints are written to
        disk. Needs the extra ``online``; not for the serial engine; docs/online.md.

        Parameters
        ----------
        simulations:
            The sources of samples: ``Simulations(simulate, inputs, count=4)``, or programs outside
            the fit.
        buffer:
            Each worker's buffer; simulations wait while it is full. docs/buffers.md has the kinds.
        batch_size:
            Samples in a batch; the last batches may have fewer.
        merge:
            ``Merge(every=...)``: number of batches after which a worker merges, through a parameter
            server in this process; 1 by default. It also takes ``outer_optimizer``,
            ``optimizer_state`` (``"keep"`` or ``"reset"``), and ``averaging`` with
            ``averaging_unit="steps"``.
        max_batches:
            Maximum number of batches that each worker trains on; ``None`` for no limit.
        validation_data, callbacks, progress, max_time:
            As in ``fit``. Validation runs concurrently with training, for one record of the history
            at a time.
        record_every:
            Seconds between records of the history; docs/reference/online.md has their fields.
        checkpoint_every:
            Seconds between saves, for which all workers wait at a merge. A worker that dies goes on
            from the last one, and a ``Checkpoint`` writes them, with the buffers. ``None`` for none
            but that of a fit that stops: all simulations run again for a worker that dies, and
            their inputs are kept until then.
        resume:
            As in ``fit``, from saves; simulations of which one lacks samples run again. Give the
            same inputs again.

        Raises the errors of ``fit``, and ``SimulationError`` if the first simulations fail, none is
        complete at the end, or samples differ in shape. After an exception or Ctrl-C the parameters
        are those merged until then.
        """
        from compss_train.online.fitting import OnlineFit

        options = OnlineOptions(
            buffer=buffer,
            batch_size=batch_size,
            merge=online_merge(merge),
            max_batches=max_batches,
            record_every=record_every,
            checkpoint_every=checkpoint_every,
            pairing=pairing_of(simulations),
        )
        self._model.require_idle("fit_online")
        self._model.check_simulations(simulations.simulate, simulations.inputs)
        called = self._callback_list(
            callbacks,
            progress=progress,
            validated=validation_data is not None,
            averaged=options.merge.averaging is not None,
            online=True,
        )
        stopping = self._stopping(max_time)
        validation = None
        if validation_data is not None:
            validation = validation_source(self._session, validation_data)
        fit = OnlineFit(
            callbacks=called,
            stopping=stopping,
            validation=validation,
            session=self._session,
            simulations=simulations,
            options=options,
        )
        fit.run(resume)
        return self._fitted()

    @property
    def seed(self) -> int:
        """The seed of all random numbers, given or drawn; after ``restore`` the checkpoint's."""
        return self._model.seed

    @property
    def history(self) -> History:
        """A dict for each round of all fits since ``build``."""
        return self._model.history

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of the loss and the metrics in every record of the history, ``"loss"`` first.

        Measures on validation data have the prefix ``val_``. Raises ``NotBuiltError`` before
        ``build``.
        """
        return self._model.built.training_spec.measures.names

    @property
    def whole_measures(self) -> tuple[str, ...]:
        """The names of the metrics ``Whole(...)``, which records have on validation data only."""
        return tuple(self._model.built.training_spec.measures.whole)

    @property
    def measures_in_steps(self) -> bool:
        """Whether a training step may add measures of its own to those in ``measures``."""
        return self._model.built.training_spec.training_step is not None

    @property
    def configuration(self) -> dict[str, Any]:
        """The arguments of the trainer, ``build`` and the last fit, and versions.

        All are values that JSON can hold. ``build`` and ``fit`` are ``None`` before they are
        called. Functions are given by name, arrays by shape. ``details`` has the attributes of the
        network, the loss and other objects, by dotted names.
        """
        return {
            "trainer": {
                "num_workers": self.num_workers,
                "engine": self._session.engine_class.name,
                "seed": self.seed,
                "threads": self.threads,
            },
            "build": self._model.described,
            "fit": self._model.described_fit,
            "details": self._model.details,
            "versions": description.versions(),
            "machine": {
                "host": platform.node(),
                "platform": platform.platform(),
                "cores": os.cpu_count(),
            },
        }

    @entry_point
    def evaluate(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int | None = None,
        averaged: bool = False,
    ) -> dict[str, Any]:
        """Return ``{"loss": ..., "<metric>": ...}`` over all samples with the global parameters.

        ``x`` and ``y`` are as in ``fit``. ``batch_size`` defaults to that of a ``DataLoader``, or
        else to 1024. With ``averaged=True`` the parameters are their average, as in ``model``.
        """
        spec = self._model.built.training_spec
        spec.check_evaluable()
        evaluation = inference(
            self._session, "evaluate", (x, y), batch_size=batch_size, averaged=averaged
        )
        with evaluation as (tasks, parameters):
            evaluated = tasks.evaluate([parameters], self._model.reports)
            fetched = tasks.engine.fetch(evaluated, small=True)
        measured = [part for parts in fetched for part in parts]
        warn_of_problems(measured, set())
        skipped = [item for part in measured for item in part.skipped.items()]
        if skipped and not any(part.samples for part in measured):
            raise BadFileError(*skipped[0])
        return spec.measures.values(measured)

    @entry_point
    def predict(
        self,
        x: Any,
        *,
        batch_size: int | None = None,
        averaged: bool = False,
        probabilities: bool = False,
    ) -> Any:
        """Return the outputs for all samples in order, with the global parameters.

        An array of shape (samples, ...), or tuples, lists and dicts of such arrays if the network
        returns them; a list with one array per sample if batches of sequences were padded to
        different lengths. Arguments are as in ``evaluate``; targets in ``x`` are left out. Rounding
        depends on the processor and the size of batches.

        With ``probabilities=True`` outputs, or their ``logits``, become the probabilities that the
        loss takes them for: a softmax for ``"cross_entropy"``, a sigmoid for
        ``torch.nn.BCEWithLogitsLoss()``. Raises ``ValueError`` for losses that are no cross
        entropies.
        """
        spec = self._model.built.training_spec
        spec.check_forward()
        as_probabilities = None
        if probabilities:
            as_probabilities = known_probabilities_for(spec.loss, "predict(probabilities=True)")
        prediction = inference(
            self._session,
            "predict",
            (x, None),
            batch_size=batch_size,
            targets=False,
            averaged=averaged,
        )
        with prediction as (tasks, parameters):
            outputs = tasks.predict(parameters, self._model.reports)
        return outputs if as_probabilities is None else of_arrays(as_probabilities, outputs)

    def model(self, *, averaged: bool = False) -> nn.Module:
        """Return a new copy of the network with the global parameters, on the CPU.

        It is in evaluation mode, as for ``predict``; call ``train()`` to train it further. With
        ``averaged=True`` the parameters are the average that a fit with ``Merge(averaging=...)``
        keeps. Attributes and buffers outside the state_dict are those of worker 0.

        Raises ``ValueError`` if the last fit kept none.
        """
        return self._model.network(averaged=averaged)

    @property
    def has_average(self) -> bool:
        """Whether the last fit kept an average of the parameters, with ``Merge(averaging=...)``."""
        return self._model.averaged is not None

    @property
    def probability_kind(self) -> ProbabilityKind | None:
        """What ``predict(probabilities=True)`` returns, as the loss says.

        ``"classes"``: the probabilities of all classes, which sum to 1; ``"binary"``: of class 1,
        for each output; ``None``: nothing, as the loss is no cross entropy.
        """
        return kind_of_probabilities(self._model.built.training_spec.loss)

    def get_parameters(self, *, averaged: bool = False) -> params.Parameters:
        """Return a copy of the global parameters, or of their average as in ``model``.

        They are arrays in state_dict order.
        """
        arrays = params.NamedArrays(params.copy_of(self._model.current(averaged=averaged)))
        arrays.state = self._model.network_state
        return arrays

    def _fitted(self) -> params.Parameters:
        """Return the parameters with what a notebook shows of the fit that has ended."""
        self._model.held = held_by_functions(self._model.built.training_spec)
        fitted = params.NamedArrays(self.get_parameters())
        fitted.state = self._model.network_state
        fitted.record = self.history[-1] if self.history else None
        return fitted

    def summary(self) -> Table:
        """Return a table of the network: what it holds, in names, shapes, numbers and bytes.

        The table says what is trained. The bytes are those of one copy. Each worker has one, and
        also gradients and the optimizer's state.
        """
        return self._model.built.training_spec.summary()

    def set_parameters(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Replace the global parameters.

        Workers begin with them, also with buffers that ``Merge(buffers=...)`` has left to each
        worker. Those of ``get_parameters`` bring what the network keeps in attributes, too; workers
        that have trained continue with their own.

        Raises ``ValueError`` if names, shapes or kinds of numbers differ, and ``RuntimeError``
        during a fit, between rounds.
        """
        net = copy.deepcopy(self._model.built.training_spec.net)
        if self._model.run is not None:
            raise RuntimeError(
                "set_parameters was called during a fit, between rounds; call it at the start or "
                "end"
            )
        params.load_into(net, params.as_parameters(parameters))
        self._model.parameters = params.from_module(net)
        self._session.replace_own_buffers()
        if isinstance(parameters, params.NamedArrays) and parameters.state is not None:
            self._session.begin_with(parameters.state)

    def set_hyperparameters(
        self,
        *,
        group: str | int | None = None,
        attributes: Mapping[str, float] | None = None,
        **options: float | Sequence[float],
    ) -> None:
        """Change the learning rate, the weight decay, a loss's weight and the like.

        In a callback what is set holds from the first round on that is not submitted yet; a
        callback whose class has ``sets_hyperparameters = True`` lets none run ahead, so that this
        is the round after ``on_round_end``. Otherwise it holds from the next fit on. It is kept in
        later fits and in checkpoints, until it is set again, or until ``build``.

        Parameters
        ----------
        options:
            Numbers of the optimizer's parameter groups by torch's names: ``lr=0.01``,
            ``weight_decay=0``, ``betas=(0.9, 0.99)``. With ``build(schedule=...)``, ``lr`` is the
            base rate: the schedule's rates are multiplied by it over the ``lr`` of ``build``.
        group:
            The name or number of the one parameter group to set them in. ``None`` (default) sets
            them in all groups that have them. Groups that callbacks add follow the first one.
        attributes:
            Numbers that objects of ``build`` keep in attributes, by paths: ``{"loss.weight":
            0.5}``, ``{"training_step.beta": 0.1}``, ``{"network.dropout.p": 0.2}``. They are set
            before each round, and seen in validation; between fits ``evaluate`` and ``model`` see
            them at once.

        Raises ``ValueError`` for an unknown name, which lists those accepted, for what is no finite
        number or not accepted by the optimizer, for what a schedule decides itself, such as the
        rate of ``ReduceLROnPlateau``; ``RuntimeError`` inside ``fit_online``, where workers have no
        rounds; ``NotBuiltError`` before ``build``.
        """
        model = self._model
        changes = model.hyperparameters or HyperparameterChanges(model.built)
        first_round = 0 if model.run is None else model.run.first_open_round()
        changes.set(first_round, options, group=group, attributes=attributes)
        model.hyperparameters = changes
        if model.run is None and attributes:
            model.show_attributes({path: changes.current()[path] for path in attributes})

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The numbers of the optimizer as built and set since, by name, as ``"lr"``.

        Those of the first parameter group have plain names; those of others, and of groups with a
        name, have ``"lr/NAME"``. With a schedule, rates are base rates. Attributes that were set
        are there by their paths.
        """
        changes = self._model.hyperparameters or HyperparameterChanges(self._model.built)
        return changes.current()

    def trained_samples(self) -> int | None:
        """Return how many samples the workers have reported, each time; ``None`` if unknown."""
        return self._session.trained_samples()

    def stop(self, reason: str) -> None:
        """End the fit after the current round, for callbacks; ``stopped`` is then ``reason``.

        Later rounds that were submitted are cancelled, but trained and recorded if workers merge
        without waiting.
        """
        if self._model.fit is None:
            raise RuntimeError("stop was called while no fit is running; call it from a callback")
        if not isinstance(reason, str):
            raise TypeError(f"stop({reason!r}): give the reason as a text, such as 'pruned'")
        self._model.fit.stopping.request(reason)

    @property
    def stopping(self) -> str | None:
        """Why the running fit is about to stop, or ``None``; for callbacks."""
        return None if self._model.fit is None else self._model.fit.stopping.reason

    @property
    def remarks(self) -> Sequence[str]:
        """What is worth a line at the start of the running fit; for callbacks."""
        return () if self._model.fit is None else self._model.fit.remarks

    @property
    def stopped(self) -> str | None:
        """Why the last fit ended early, or ``None``.

        It is the argument of ``stop``, ``"max_time"`` or ``"SIGTERM"``.
        """
        return self._model.stopped

    @property
    def resumed_from(self) -> Path | None:
        """The checkpoint that the current or last fit was resumed from."""
        return self._model.resumed_from

    def snapshot(self) -> Snapshot:
        """Return the state to resume from; in callbacks after a round that ``needs_state``."""
        return resuming.snapshot_of(self._session)

    @property
    def state_id(self) -> object:
        """What tells apart states of ``snapshot``; ``None`` between saves of ``fit_online``."""
        return self._model.state_id

    def checkpoint_bytes(self) -> int:
        """Return about how many bytes a checkpoint takes: arrays, optimizers and the history."""
        return resuming.checkpoint_bytes(self._session)

    def save(self, path: str | os.PathLike[str], *, averaged: bool = False) -> None:
        """Write the global parameters, or their average, to a ``.safetensors`` or ``.npz`` file.

        ``compss_train.load(path, net)`` reads it; a ``.safetensors`` file includes the parameters'
        SHA-256. The file is complete or does not exist. Raises ``ValueError`` for other suffixes,
        and for names such as ``"s3://..."``. For programs without this package see ``export``.
        """
        if not is_remote(os.fspath(path)):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        parameters = params.from_module(self.model(averaged=averaged))
        params.save(path, parameters, self._model.network_state)

    @entry_point
    def export(
        self, path: str | os.PathLike[str], example: Any = None, *, averaged: bool = False
    ) -> None:
        """Write the trained network to a file for programs that need no ``compss_train``.

        Before the file gets its name, it is read again, and its outputs on a few samples are
        compared with those of ``predict``.

        Parameters
        ----------
        path:
            ``"net.onnx"`` for ONNX Runtime and others (extra ``onnx``), ``"net.pt2"`` for
            ``torch.export.load``, both for batches of any size, or ``"net.safetensors"`` for the
            weights alone, as ``save`` writes them.
        example:
            Samples as for ``predict``, of which the first 8 are used. ``None`` (default) takes
            those of the last fit, where it was on arrays, frames or files.
        averaged:
            Whether to write the average of the parameters, as in ``model``.

        The file takes float32, integers and so on as the network does: what ``transform`` and
        ``collate`` do to samples, and autocast, is not in it.

        Raises ``ValueError`` for other suffixes, without an example where one is needed, and for a
        network that cannot be exported or whose outputs differ, and ``ModuleNotFoundError`` if
        packages of the extra are missing.
        """
        from compss_train.training.exporting import export

        spec = self._model.built.training_spec
        spec.check_forward()
        source = self._model.example
        if example is not None:
            source = as_data_source(example, None, 1, targets=False, floats=spec.float_dtype)
            check_same_coding(self._model.coding, source, "the example")
        if not is_remote(os.fspath(path)):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        export(Path(path), self.model(averaged=averaged), spec, source)

    def restore(self, folder: str | os.PathLike[str], *, best: bool = False) -> None:
        """Load parameters, history, counters and the workers' states from a checkpoint.

        Call ``build`` first. ``folder`` is the folder of a ``Checkpoint`` callback, from which the
        newest good checkpoint is loaded, or with ``best=True`` the best one; or it is a single
        checkpoint. Both may be in an object store (``"s3://..."``). A later fit is a new fit of the
        same trainer. Warns if newer checkpoints are damaged.

        Raises ``FileNotFoundError``, ``BadCheckpointError``, ``ValueError`` for another network,
        optimizer or seed.
        """
        self._model.require_idle("restore")
        resuming.restore(self._session, folder, best=best)

    def close(self) -> None:
        """End the worker processes. The trainer can still be used, and then starts new ones."""
        self._session.end(kill=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._session.end(kill=kind is not None)


def _loss_count(
    loss: str | losses.BatchFunction | Counted | None, net: nn.Module
) -> Callable[[Any], Any] | None:
    """Return what says what a loss is a mean over; ``None`` where the loss itself tells."""
    if isinstance(loss, Counted):
        return loss.count
    return count_for(net) if loss == OUTPUT_LOSS else None
