"""``DistributedTrainer``: build a model, fit it on many workers, evaluate it, predict with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from compss_train._utils.validation import check_choice
from compss_train.buffers import BufferSpec
from compss_train.callbacks import Callback
from compss_train.callbacks.checks import check_callbacks, check_watched, warn_of_other_hooks
from compss_train.callbacks.progress import with_progress
from compss_train.data import FileDataset
from compss_train.data.partitioning import MergeUnit, Schedule, Shuffle
from compss_train.model import parameters as params
from compss_train.model.loss_weights import check_weightable
from compss_train.model.parameters import Parameters
from compss_train.online.job import Pairing
from compss_train.online.options import OnlineOptions
from compss_train.online.setup import FitStart, online_fit
from compss_train.training.callback import CallbackList
from compss_train.training.data_source import DataSource, as_data_source
from compss_train.training.description import described_fit
from compss_train.training.fit_options import FitOptions, MergeName, OptimizerState, Rule
from compss_train.training.inference import EVALUATION_BATCH
from compss_train.training.merging import make_merge
from compss_train.training.named_fits import NamedFits
from compss_train.training.resuming import ResumableTrainer
from compss_train.training.rounds import FitProgress, Record, Rounds
from compss_train.training.session import Session
from compss_train.training.stopping import Stopping


class DistributedTrainer(ResumableTrainer, NamedFits[Parameters]):
    """Trains one PyTorch model with ``num_workers`` model copies that are merged from time to time.

    Parameters
    ----------
    num_workers:
        Model copies, at least 1. Each trains its share of the blocks in tasks.
    engine:
        ``"auto"`` (default: ``"compss"`` in an application of COMPSs, else ``"local"``), ``"serial"`` (in this
        process, for debugging), ``"local"`` (processes on this machine), ``"compss"`` (tasks of PyCOMPSs), or an
        ``Engine``, which is the caller's to shut down (an exception in a fit does, too).
    seed:
        Integer from 0 to 2**63 - 1 that fixes the order of samples and every random number in the workers; ``None``
        (default) draws one, which ``trainer.seed`` tells.
    threads:
        Intra-op threads of each task (under COMPSs, its computing units); by default the cores shared among the
        workers, or what a given engine has. Another number of threads may round differently.

    The worker processes start with the first call that needs them and are kept for the next, with each worker's
    optimizer and random states; ``close()`` or a ``with`` block ends them, and so does an exception in a fit.

    Attributes: ``history``, a ``History``: a list of dicts, one a round; ``configuration``; ``seed``,
    ``num_workers``, ``threads``.
    """

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        num_epochs: int,
        num_batches_per_worker: int | None = None,
        batch_size: int | None = None,
        merge: MergeName = "synchronous",
        merge_every: int = 1,
        merge_unit: MergeUnit = "epochs",
        shuffle: Shuffle = "blocks",
        shuffle_block_data: bool = True,
        validation_data: tuple[Any, Any] | FileDataset | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
        resume: str | os.PathLike[str] | bool = False,
        max_time: float | timedelta | None = None,
        rule: Rule = "weighted",
        optimizer_state: OptimizerState = "keep",
        buffer: BufferSpec | None = None,
        shuffle_buffer: int | None = None,
        pools: int = 1,
        file_buffer: int = 10,
        sample_weight: Any = None,
    ) -> Parameters:
        """Train, and return the final global parameters, arrays in state_dict order.

        A second fit goes on where the first ended: parameters, optimizer and random states, counting of epochs.

        Parameters
        ----------
        x, y:
            Blocked tensors with the same grid and block sizes (dislib's too), or arrays, which are cut into a
            block a worker; or a ``FileDataset`` as ``x``, whose files are blocks that the workers read. Without
            ``y`` each transformed batch is its own target, as for autoencoders.
        num_epochs:
            How often every sample is trained on.
        num_batches_per_worker, batch_size:
            Exactly one: how many batches each block is cut into, or the most samples that a batch may have.
            Batch sizes within a block differ by one at most.
        merge:
            ``"synchronous"`` averages all workers weighted by their samples; ``"commutative"`` adds each one's
            weighted change when it arrives, and nobody waits; ``"parameter_server"`` does so layer by layer at a
            server that the workers themselves connect to (needs the extra ``server``).
        merge_every, merge_unit:
            Merge every so many ``"epochs"``, or ``"blocks"`` a worker inside an epoch; 0 merges once at the end.
        shuffle:
            Each epoch deals whole ``"blocks"`` to workers in a new order, or permutes all samples (``"total"``, not
            for files), or deals equal shares of blocks in a new order, whose samples are mixed in pools while they
            are read in turn (``"partial"``), or does none of these (``None``).
        shuffle_block_data:
            Whether the samples within each block are shuffled every time that it is trained on.
        validation_data:
            (x, y) or files to evaluate the global parameters on after every round, as ``val_loss`` and so on.
            Commutative merging then waits for all updates of a round before those of the next.
        callbacks:
            ``Callback`` objects, called in this process.
        progress:
            Whether to show a progress bar in a terminal or notebook, and elsewhere to write a line a round, on
            standard error; a ``ProgressBar`` or ``RoundLines`` among the callbacks takes its place.
        resume:
            Folder of checkpoints, or one checkpoint, to go on from: the rest of the interrupted fit is trained,
            with the same numbers as without interruption where workers merge synchronously. ``True`` takes the
            folder of the ``Checkpoint`` among the callbacks, and begins where there is none in it yet.
        max_time:
            Seconds, or a ``timedelta``, that the fit may take. It stops before a round that would take longer, as
            far as earlier ones tell, or else gives up the round under way (on COMPSs when that has ended).
        rule:
            Of commutative merging: ``"weighted"`` by samples, or dislib's ``"halving"``, (global + worker) / 2.
        optimizer_state:
            ``"keep"`` each worker's from round to round, or ``"reset"`` it at the start of every round.
        buffer:
            ``None`` trains block after block. With a ``BufferSpec`` each worker's samples pass through a buffer, so
            that batches mix blocks, and files are read ahead; docs/buffers.md compares the kinds.
        shuffle_buffer, pools:
            Of a partial shuffle: samples in a pool (by default as many as the largest block has), and 1 or 2 pools;
            see ``PartialShuffleSampler``. The pools run empty at the end of an epoch and where workers merge.
        file_buffer:
            The most files that each worker has in memory; 1 reads none ahead.
        sample_weight:
            A weight for each sample in the loss that is trained on, finite and at least 0: blocks like those of
            ``x``, or an array of shape (samples,) or (samples, 1). Files have theirs by
            ``FileDataset(..., weight=NAME)``. ``None`` (default) for none; docs/training-options.md.

        Raises ``ValueError`` for options and data that do not fit, ``NotBuiltError`` before ``build``,
        ``DivergedError`` when a loss or parameter turns NaN or infinite, ``WorkerLostError`` when a process dies
        again and again, and whatever the model raises, with the worker's traceback. Warns where there are more
        workers than blocks. ``BadCheckpointError``, ``FileNotFoundError`` and ``ValueError`` for what cannot be
        resumed.
        SIGTERM stops a fit as ``max_time`` does, and then ends the program with ``SystemExit``, unless it has a
        handler of its own. After an exception or Ctrl-C the parameters are those after the last complete round
        (with what workers have added since, where they merge commutatively; on COMPSs then those before the fit).
        """
        options = FitOptions(
            num_epochs=num_epochs,
            num_batches_per_worker=num_batches_per_worker,
            batch_size=batch_size,
            merge=merge,
            merge_every=merge_every,
            merge_unit=merge_unit,
            shuffle=shuffle,
            shuffle_block_data=shuffle_block_data,
            rule=rule,
            optimizer_state=optimizer_state,
            buffer=buffer,
            shuffle_buffer=shuffle_buffer,
            pools=pools,
            file_buffer=file_buffer,
        )
        built = self._require_built()
        self._require_idle("fit")
        stopping, told = Stopping(max_time, self._clock), self._telling(callbacks, progress)
        found = self._found(resume, told)
        data = as_data_source(x, y, self._blocks(found)).weighted(sample_weight)
        if data.has_weights:
            check_weightable(built.training_spec.loss)
        held_out = None if validation_data is None else self._held_out(validation_data)
        check_watched(told.callbacks, self.measures, validated=held_out is not None)
        options.check_data(data.sizes, in_files=isinstance(x, FileDataset))
        course = self._resume(found, options, data, told)
        if built.lr_schedule is not None:
            built.lr_schedule.prepare(course.first_epoch + num_epochs)
        params.check_finite(self._parameters)
        data.warn_of_idle_workers(self.num_workers, shuffle)
        self._last_fit = described_fit("fit", options, told.callbacks, data=data, validation_data=held_out)
        schedule = self._schedule(course)
        with self._working(built, fitting=True) as session, self._stoppable(stopping, told, course):
            with told.fit(schedule.samples):
                self._run(session, schedule, course, data, held_out, stopping, told)
            self._end_in_time(stopping)
        return self.get_parameters()

    def _schedule(self, course: FitProgress) -> Schedule:
        return course.options.schedule(
            course.data.sizes, self.num_workers, self.seed, course.first_epoch, len(self.history), course.reached
        )

    def _run(
        self,
        session: Session,
        schedule: Schedule,
        course: FitProgress,
        data: DataSource,
        held_out: DataSource | None,
        stopping: Stopping,
        told: CallbackList,
    ) -> None:
        fleet = session.fleet(data, course.options, self.seed, self._require_built().lr_schedule)
        validation = None if held_out is None else session.inference(held_out, EVALUATION_BATCH)
        buffers = [name for name, _ in session.net.named_buffers()]
        merge = make_merge(course.options, session.engine, self._parameters, self.num_workers, buffers)
        rounds = Rounds(
            session.engine,
            fleet,
            merge,
            self._require_built().training_spec.measures,
            validation,
            course,
            stopping,
            told,
            self._recorder(told),
        )
        self._rounds = rounds
        try:
            self._parameters = params.copy_of(rounds.run(schedule.rounds()) or self._parameters)
            self.stopped = rounds.stopped
        except BaseException:
            self._parameters = params.copy_of(rounds.newest() or self._parameters)
            raise
        finally:
            self._rounds = None
            merge.stop()
        merge.close()
        fleet.data.delete()
        if validation is not None:
            validation.data.delete()

    def fit_online(
        self,
        simulate: Callable[[Any], Iterable[Any]] | None,
        inputs: Iterable[Any] = (),
        *,
        buffer: BufferSpec,
        batch_size: int,
        num_simulators: int,
        merge_every_batches: int,
        max_batches: int | None = None,
        validation_data: tuple[Any, Any] | FileDataset | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
        max_time: float | timedelta | None = None,
        pairing: Pairing | None = None,
        record_every: float = 1.0,
        checkpoint_every: float | None = 60.0,
        simulation_retries: int = 2,
        simulation_timeout: float | None = None,
        senders: int = 0,
        address: str | None = None,
        token: str | None = None,
        optimizer_state: OptimizerState = "keep",
    ) -> Parameters:
        """Train while simulations run, and return the final global parameters, arrays in state_dict order.

        Simulations run as tasks, and send their samples to ``num_workers`` workers, which hold them in buffers and
        train batches that they draw, until all simulations have ended and the buffers are empty. Nothing but
        checkpoints is written to disk. Needs the extra ``server``, and the engine local or compss; docs/online.md.

        Parameters
        ----------
        simulate:
            A generator function of one input that yields samples: (x, y), or (step, x, y) where the buffer pairs
            time steps, or x alone for autoencoders. Runs in another process, and may run again.
        inputs:
            What it is called with: a list, or an iterator, which may be endless. The next one is asked for in this
            process when a simulation has ended; everything waits meanwhile.
        buffer:
            Description of the buffer of each worker: a full one lets simulations wait. FIFO and FIRO give each
            sample once, reservoirs at least once.
        batch_size:
            Samples of a batch; fewer in the last ones.
        num_simulators:
            How many simulations run at the same time.
        merge_every_batches:
            Batches of a worker after which it merges with the others, through a parameter server in this process.
        max_batches:
            The most batches that each worker trains; ``None`` for as many as there are.
        validation_data, callbacks, progress, max_time, optimizer_state:
            As of ``fit``. The validation runs beside the training, with one record of the history after the other.
        pairing:
            Of a SimPairedReservoir: makes (x, y) of two batches of ``TimeStep``, the earlier and the later ones.
        record_every:
            Seconds between records of the history; docs/online.md explains what is in them.
        checkpoint_every:
            Seconds after which each worker saves itself and its buffer, which the worker that takes its place if it
            dies goes on from. ``None`` for never.
        simulation_retries:
            How often a simulation runs again that has raised, hung, or whose process died. Samples that have
            arrived are not sent again. Then it is left out, with a warning.
        simulation_timeout:
            Seconds that a simulation may take for a sample; ``None`` for ever.
        senders, address, token:
            How many other programs will send samples with ``SampleSender``, to this address (``tcp://HOST:PORT``)
            and with this token.

        Raises as ``fit`` does, and ``SimulationError`` where simulations fail before any has given a sample. After
        an exception or Ctrl-C the parameters are those that workers have merged until then.
        """
        options = OnlineOptions(
            simulate=simulate,
            inputs=inputs,
            buffer=buffer,
            batch_size=batch_size,
            num_simulators=num_simulators,
            merge_every_batches=merge_every_batches,
            max_batches=max_batches,
            pairing=pairing,
            record_every=record_every,
            checkpoint_every=checkpoint_every,
            simulation_retries=simulation_retries,
            simulation_timeout=simulation_timeout,
            senders=senders,
            address=address,
            optimizer_state=optimizer_state,
            token=token,
        )
        built = self._require_built()
        self._require_idle("fit_online")
        if built.lr_schedule is not None:
            raise ValueError(
                "fit_online has no epochs, which a schedule goes by; build without schedule=, with the learning "
                "rate for all of it"
            )
        stopping, told = Stopping(max_time, self._clock), self._telling(callbacks, progress)
        held_out = None if validation_data is None else self._held_out(validation_data)
        check_watched(told.callbacks, self.measures, validated=held_out is not None, online=True)
        params.check_finite(self._parameters)
        self.resumed_from = None
        self._last_fit = described_fit("fit_online", options, told.callbacks, validation_data=held_out)
        with self._working(built, fitting=True) as session, self._stoppable(stopping, told, None):
            with told.fit(None):
                self._run_online(session, options, held_out, stopping, told)
            self._end_in_time(stopping)
        return self.get_parameters()

    def _run_online(
        self,
        session: Session,
        options: OnlineOptions,
        held_out: DataSource | None,
        stopping: Stopping,
        told: CallbackList,
    ) -> None:
        measures = self._require_built().training_spec.measures
        begun = FitStart(self._parameters, self.seed, measures, len(self.history), self._epochs)
        recorder = self._recorder(told)
        with online_fit(session, options, begun, held_out, stopping, recorder, told.round_start) as running:
            self._rounds = running
            try:
                running.run()
                self._parameters = running.current()
                self.stopped = running.stopped
            except BaseException:
                with suppress(OSError, RuntimeError):  # whatever ended the fit is what is told
                    self._parameters = running.newest()
                raise
            finally:
                self._rounds = None

    def _telling(self, callbacks: Sequence[Callback], progress: bool) -> CallbackList:
        checked = check_callbacks(callbacks)
        warn_of_other_hooks(checked)
        check_choice("progress", progress, (True, False))
        return CallbackList(with_progress(checked, progress), self)

    def _recorder(self, told: CallbackList) -> Callable[[Record], None]:
        """Return what a round's record is given to."""

        def record_round(record: Record) -> None:
            self.history.append(record)
            self._epochs = record["epoch"]
            told.round_end(record)

        return record_round

    def _held_out(self, validation_data: tuple[Any, Any] | FileDataset) -> DataSource:
        pair = (validation_data, None) if isinstance(validation_data, FileDataset) else validation_data
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(
                f"validation_data={type(validation_data).__name__}: give a pair (x, y), y being None where x is "
                "its own target, or a FileDataset"
            )
        return as_data_source(pair[0], pair[1], self.num_workers)
