"""``DistributedTrainer``: builds a model, fits it on many workers, evaluates it, predicts with it."""

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from compss_train._utils.validation import check_keywords, entry_point
from compss_train.buffers import BufferSpec
from compss_train.callbacks import Callback, Profile
from compss_train.callbacks.checks import callback_list
from compss_train.data import FileDataset
from compss_train.model.parameters import Parameters
from compss_train.online.options import OnlineOptions, Simulations, online_merge
from compss_train.training import description, planning, resuming, rounds
from compss_train.training.callback import AnyCallback
from compss_train.training.fit import FitOfEpochs, FitOptions, ShuffleLike
from compss_train.training.merge import Merge, MergeLike
from compss_train.training.named_fits import NamedFits
from compss_train.training.stopping import Stopping
from compss_train.training.trainer_base import TrainerBase


class DistributedTrainer(TrainerBase, NamedFits[Parameters]):
    """Trains a PyTorch model as ``num_workers`` copies that are merged from time to time.

    Parameters
    ----------
    num_workers:
        Number of copies of the model, each trained on its share of the blocks; results depend on it. By default as
        many as can run at once: physical cores, slots of the engine or units of COMPSs, divided by ``threads``.
    engine:
        ``"auto"`` (default: ``COMPSS_TRAIN_ENGINE``, else ``"compss"`` in a COMPSs application, ``"ray"`` if
        ``RAY_ADDRESS`` is set, and ``"local"`` otherwise), ``"serial"`` (in this process, for debugging),
        ``"local"`` (processes on this machine), ``"compss"`` (PyCOMPSs tasks), ``"ray"`` (Ray tasks), or an
        ``Engine``, which only the caller shuts down: several trainers can share it, also in several threads (not
        on COMPSs), and what fails ends its own tasks only.
    seed:
        Integer from 0 to 2**63 - 1 that determines the order of samples and all random numbers in the workers;
        ``None`` (default) draws one, which ``trainer.seed`` returns.
    threads:
        Intra-op threads of each task (under COMPSs, its computing units); by default the cores divided among the
        workers, or the threads of the given engine. Results may differ by rounding for another number.
    worker_timeout:
        Seconds without a batch after which a worker's process counts as stopped or hung in ``fit``: it is ended,
        and its task runs again in another process, up to 4 times in all. Allow more time than the slowest batch and
        the slowest merge take. ``None`` (default) only warns of such processes: docs/long-runs.md.

    Worker processes start with the first call that needs them, and are kept for later calls, with each worker's
    optimizer and random states. ``close()``, the end of a ``with`` block and an exception in a fit end them, unless
    they are those of a given engine.

    Attributes: ``history`` (a dict for each round), ``configuration``, ``seed``, ``num_workers``, ``threads``.
    """

    _clock: Callable[[], float] = staticmethod(time.monotonic)

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
        buffer: BufferSpec | None = None,
        sample_weight: Any = None,
        validation_data: tuple[Any, Any] | FileDataset | None = None,
        callbacks: Sequence[AnyCallback] = (),
        progress: bool = True,
        resume: str | os.PathLike[str] | bool = False,
        max_time: float | timedelta | None = None,
    ) -> Parameters:
        """Train, and return the final global parameters, arrays in state_dict order.

        A second fit continues the first: parameters, optimizer and random states, and the count of epochs.

        Parameters
        ----------
        x, y:
            Blocked tensors with the same grid and block sizes (also dislib's), or arrays, which are cut into one
            block per worker, or like the other argument if that one is blocked; or a ``FileDataset`` as ``x``,
            whose files are the blocks and which the workers read. Pass Pandas and polars frames, torch and Hugging
            Face data sets and a ``DataLoader`` directly: docs/data.md. Without ``y``, each transformed batch is its
            own target. Both may be tuples, lists or dicts of these, for several inputs and outputs: docs/models.md.
            Arrays are not copied here: do not change them during the fit, for example in a callback.
        num_epochs:
            Number of passes over all samples, at most 10**9 (to train until ``max_time``).
        batch_size, num_batches_per_worker:
            Give one of them: the maximum number of samples in a batch, or the number of batches that each block is
            cut into. Batch sizes within a block differ by at most one. ``merge="auto"`` needs neither.
        merge:
            When and how workers merge: a ``Merge``, or its kind by name. ``"synchronous"`` (default) averages all
            workers at the end of every epoch, ``"commutative"`` those that have arrived, ``"parameter_server"``
            adds each worker's change, layer by layer; ``"auto"`` and the other presets also choose the options.
            ``configuration["fit"]`` has the options used.
        shuffle:
            ``"blocks"`` distributes whole blocks to the workers in a new order each epoch; ``"total"`` permutes all
            samples (not for files); a ``PartialShuffle`` distributes equal shares of blocks in a new order and
            mixes their samples in pools while they are read in sequence; ``None`` keeps the order.
        shuffle_block_data:
            Whether to shuffle the samples within each block in every epoch.
        buffer:
            ``None`` (default) trains on one block after another. With a ``BufferSpec`` each worker's samples pass
            through a buffer, so that batches mix blocks, and files are read ahead; docs/buffers.md compares the
            kinds.
        sample_weight:
            A weight for each sample in the training loss, finite and at least 0: blocks that match ``x``, or an
            array of shape (samples,) or (samples, 1). For files use ``FileDataset(..., weight=NAME)``. ``None``
            (default) for no weights; docs/training-options.md.
        validation_data:
            (x, y) or files on which the global parameters are evaluated after every round, as ``val_loss`` and so
            on. Commutative merging then applies all updates of a round before the next round's.
        callbacks:
            ``Callback`` objects, called in this process, and ``WorkerCallback`` objects, called in the workers.
        progress:
            Whether to show progress on standard error: a bar in a terminal or notebook, and elsewhere a line per
            round. A ``ProgressBar`` or ``RoundLines`` among the callbacks replaces it.
        resume:
            Folder of checkpoints, of which the newest good one is used, or a single checkpoint. The rest of the
            interrupted fit is trained and, if workers merge synchronously, gives the bits of a fit without
            interruption. A warning names damaged checkpoints. ``True`` uses the folder of the ``Checkpoint`` among
            the callbacks, and starts a new fit if it holds no checkpoint yet.
        max_time:
            Time limit of the fit: seconds or a ``timedelta``. Judging by earlier rounds, the fit stops before a
            round that would exceed it. If a round exceeds it anyway, it is cancelled (on COMPSs the fit ends after
            it). The limit of ``runcompss --wall_clock_limit`` also applies, less a twentieth of it or 60 s if that
            is shorter.

        Raises ``ValueError`` for unsuitable options and data, ``NotBuiltError`` before ``build``, ``DivergedError``
        if a loss or parameter becomes NaN or infinite, ``WorkerLostError`` if a process dies repeatedly, and the
        exceptions of the model, with the worker's traceback; ``BadCheckpointError``, ``FileNotFoundError`` and
        ``ValueError`` for a checkpoint that cannot be resumed. Warns if there are more workers than blocks, and if
        outputs do not suit the loss. SIGTERM stops a fit as ``max_time`` does, and then ends the program with
        ``SystemExit``, unless the program handles SIGTERM itself. After an exception or Ctrl-C the parameters are
        those of the last complete round. With commutative merging they include later changes; on COMPSs they are
        then those before the fit.
        """
        options = FitOptions(
            num_epochs=num_epochs,
            batch_size=batch_size,
            num_batches_per_worker=num_batches_per_worker,
            merge=Merge.of(merge),
            shuffle=shuffle,
            shuffle_block_data=shuffle_block_data,
            buffer=buffer,
            sample_weight=sample_weight,
            validation_data=validation_data,
            callbacks=callbacks,
            progress=progress,
            resume=resume,
            max_time=max_time,
        )
        fit = self._plan("fit", x, y, options)
        resuming.prepare(fit, self._session)
        traces = [str(each.path) for each in fit.callbacks.callbacks if isinstance(each, Profile)]
        read = {"data": fit.data, "validation_data": fit.validation, "profile": next(iter(traces), None)}
        self._model.last_fit = description.described_fit("fit", fit.options, fit.callbacks.all, **read)
        self._model.coding = fit.data.coding
        rounds.run_rounds(fit, self._session)
        return self.get_parameters()

    def check_fit(self, x: Any, y: Any = None, *, num_epochs: int, **options: Any) -> None:
        """Check the arguments of a fit without running it: everything that ``fit`` checks, and one batch.

        Takes the arguments of ``fit``, and raises the same errors and warnings. The first batch is trained in this
        process, which also finds a network that does not match the data and a loss that is NaN. With ``num_gpu``
        this uses the first GPU, or the CPU if this process has none; its errors are then warnings, because some
        operations need a GPU. No worker is started, no file is written, and the trainer is unchanged.
        """
        check_keywords(self.fit, options)
        options["merge"] = Merge.of(options.get("merge", "synchronous"))
        fit = self._plan("check_fit", x, y, FitOptions(num_epochs=num_epochs, **options))
        planning.try_fit(fit, self._model)

    def _plan(self, method: str, x: Any, y: Any, options: FitOptions) -> FitOfEpochs:
        """Return the fit with these options, which ``method`` needs, after all checks that need no task."""
        self._model.ready(method)
        records = {"validated": options.validation_data is not None, "averaged": bool(options.merge.averaging)}
        called = callback_list(self, options.callbacks, options.progress, **records)
        stopping = Stopping(options.max_time, self._clock, self._session.engine_class.time_left())
        return planning.plan_fit(self._session, x, y, options, called, stopping)

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
    ) -> Parameters:
        """Train while simulations run, and return the final global parameters, arrays in state_dict order.

        Simulations run as tasks and send their samples to ``num_workers`` workers, which hold them in buffers and
        train on batches drawn from these, until all simulations have ended and the buffers are empty. Only
        checkpoints are written to disk. Needs the extra ``online``, and the engine local or compss; docs/online.md.

        Parameters
        ----------
        simulations:
            The sources of samples: ``Simulations(simulate, inputs, count=4)``, or programs outside the fit.
        buffer:
            Description of each worker's buffer; simulations wait while it is full. FIFO and FIRO return each sample
            once, reservoirs at least once.
        batch_size:
            Samples in a batch; the last batches may have fewer.
        merge:
            ``Merge(every=...)``: number of batches after which a worker merges, through a parameter server in this
            process; 1 by default. It also takes ``outer_optimizer`` and ``optimizer_state`` (``"keep"`` or
            ``"reset"``).
        max_batches:
            Maximum number of batches that each worker trains on; ``None`` for no limit.
        validation_data, callbacks, progress, max_time:
            As in ``fit``. Validation runs concurrently with training, for one record of the history at a time.
        record_every:
            Seconds between records of the history; docs/reference/online.md has their fields.
        checkpoint_every:
            Seconds between saves of each worker's state and buffer, from which its replacement resumes if it dies.
            ``None`` for never.

        Raises the errors of ``fit``, and ``SimulationError`` if simulations fail before the first sample. After an
        exception or Ctrl-C the parameters are those merged until then.
        """
        from compss_train.online.fitting import train_online

        if not isinstance(simulations, Simulations):
            raise TypeError(
                f"simulations={simulations!r}: give Simulations(simulate, inputs, ...), or "
                "Simulations(senders=..., address=..., token=...) if only other programs send"
            )
        options = OnlineOptions(
            buffer=buffer,
            batch_size=batch_size,
            merge=online_merge(merge),
            max_batches=max_batches,
            record_every=record_every,
            checkpoint_every=checkpoint_every,
            pairing=simulations.pairing,
        )
        self._model.ready("fit_online")
        called = callback_list(self, callbacks, progress, validated=validation_data is not None, online=True)
        stopping = Stopping(max_time, self._clock, self._session.engine_class.time_left())
        train_online(self._session, simulations, options, called, validation_data, stopping)
        return self.get_parameters()

    def restore(self, folder: str | os.PathLike[str], *, best: bool = False) -> None:
        """Load parameters, history, counters and the workers' states from a checkpoint; call ``build`` first.

        ``folder`` is the folder of a ``Checkpoint`` callback, from which the newest good checkpoint is loaded, or
        with ``best=True`` the best one; or it is a single checkpoint. Both may be in an object store
        (``"s3://..."``). A later fit is a new fit of the same trainer. Warns if newer checkpoints in the folder are
        damaged.

        Raises ``FileNotFoundError``, ``BadCheckpointError``, and ``ValueError`` for a checkpoint with another
        network, optimizer or seed than the trainer's.
        """
        self._model.ready("restore")
        resuming.restore(self._session, folder, best=best)
