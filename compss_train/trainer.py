"""``DistributedTrainer``: build a model, fit it on many workers, evaluate it, predict with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compss_train import parameters as params
from compss_train.buffers import BufferSpec
from compss_train.callbacks import Callback, telling
from compss_train.coordinator import EVALUATION_BATCH, Coordinator
from compss_train.data import FileDataset
from compss_train.data.schedule import MergeUnit, Shuffle
from compss_train.fits import NamedFits
from compss_train.given import Given, as_given
from compss_train.merging import make_merge
from compss_train.options import FitOptions, MergeName, OptimizerState, Rule
from compss_train.parameters import Parameters
from compss_train.rounds import Record, Rounds
from compss_train.session import Session


class DistributedTrainer(Coordinator, NamedFits[Parameters]):
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

    Attributes: ``history``, a list of dicts, one a round; ``seed``, ``num_workers``, ``threads``.
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
        rule: Rule = "weighted",
        optimizer_state: OptimizerState = "keep",
        buffer: BufferSpec | None = None,
        shuffle_buffer: int | None = None,
        pools: int = 1,
        file_buffer: int = 10,
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

        Raises ``ValueError`` for options and data that do not fit, ``NotBuiltError`` before ``build``,
        ``DivergedError`` when a loss turns NaN or infinite, ``WorkerLostError`` when a process dies again and
        again, and whatever the model raises, with the worker's traceback. Warns where there are more workers
        than blocks. After an exception or Ctrl-C the parameters are those after the last complete round (with
        what workers have added since, where they merge commutatively; on COMPSs then those before the fit).
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
        data = as_given(x, y, self.num_workers)
        held_out = None if validation_data is None else self._held_out(validation_data)
        options.check_data(data.sizes, in_files=isinstance(x, FileDataset))
        params.check_finite(self._parameters)
        data.warn_of_idle_workers(self.num_workers, shuffle)
        with (
            self._working(built, fitting=True) as session,
            telling(callbacks, self, num_epochs * data.number_samples),
        ):
            self._run(session, options, data, held_out, callbacks)
        return self.get_parameters()

    def _run(
        self,
        session: Session,
        options: FitOptions,
        data: Given,
        held_out: Given | None,
        callbacks: Sequence[Callback],
    ) -> None:
        def on_round(record: Record) -> None:
            self.history.append(record)
            self._epochs = record["epoch"]
            for callback in callbacks:
                callback.on_round_end(self, record)

        schedule = options.schedule(data.sizes, self.num_workers, self.seed, self._epochs, len(self.history))
        fleet = session.fleet(data, options, self.seed)
        validation = None if held_out is None else session.inference(held_out, EVALUATION_BATCH)
        buffers = [name for name, _ in session.net.named_buffers()]
        merge = make_merge(options, session.engine, self._parameters, self.num_workers, buffers)
        rounds = Rounds(session.engine, fleet, merge, self._require_built().metric, validation, on_round)
        self._rounds = rounds
        try:
            self._parameters = params.copy_of(rounds.run(schedule.rounds()))
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

    def _held_out(self, validation_data: tuple[Any, Any] | FileDataset) -> Given:
        pair = (validation_data, None) if isinstance(validation_data, FileDataset) else validation_data
        return as_given(pair[0], pair[1], self.num_workers)
