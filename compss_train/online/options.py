"""What a user chooses for an online fit: what sends samples, and how to train.

It is checked before any task starts.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Set, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from compss_train._utils.validation import (
    check_choice,
    check_count,
    check_seconds,
    check_token,
    host_and_port,
    is_iterable,
)
from compss_train.buffers import BufferSpec
from compss_train.buffers.storage import check_fits
from compss_train.data.frames import is_frame
from compss_train.engines import Engine
from compss_train.engines.nodes import Resources
from compss_train.online.input_samplers import InputSampler
from compss_train.online.jobs import Jobs
from compss_train.online.solver import Solver
from compss_train.training.merge import Merge, MergeLike
from compss_train.training.pickling import check_picklable

_MOST_AT_A_TIME = 10**6
"""The largest ``count``: no machine runs as many processes."""
UNCOUNTED = 2**40
"""The first number of a sender if it is not known how many simulations there are."""

Pairing = Callable[[Any, Any], Any]
"""Makes (x, y) of two batches of time steps, the earlier and the later of each pair."""


@dataclass(frozen=True)
class Simulations:
    """What sends samples while ``fit_online`` trains: simulations, other programs, or both.

    Parameters
    ----------
    simulate:
        A generator function of one input that yields samples: (x, y), or (step, x, y) if the buffer
        pairs time steps, or x alone for autoencoders. It runs in another process, and may run
        again. Or a ``Solver``, which runs an executable. ``None`` if ``jobs`` or ``senders`` send.
    inputs:
        The inputs, one per simulation: a list, or an iterator, which may be endless, or an
        ``InputSampler``, which chooses them while the network learns. The coordinator requests the
        next one when a simulation has ended, and waits for it.
    count:
        Number of simulations that run at the same time; 1 by default. It is at most the number of
        inputs, and what the engine can run at a time.
    retries:
        How often a simulation that raised an exception, hung or died may run again; 2 by default.
        Samples that have arrived are not sent again. After that the simulation is skipped, with a
        warning; after a ``NameError``, ``TypeError`` and other mistakes of a program at once.
    timeout:
        Maximum seconds between two samples of a simulation; ``None`` (default) for no limit.
    steps:
        Number of time steps of a complete simulation, or a function of its input that returns it:
        a simulation that ends with fewer has failed, as if it had raised an exception, and so has
        one with more, which does not run again. A step is what a ``Solver`` sends, or a sample that
        a function yields. ``None`` (default) if that is not known: of solvers whose numbers differ
        a warning has both.
    jobs:
        ``Jobs``, in place of ``simulate``: each simulation is a job of a queue, whose program sends
        its samples to ``address`` with ``SampleSender()``. ``retries`` and ``timeout`` are those of
        simulations; a job that is silent for ``timeout`` seconds after it has connected is
        cancelled. ``Jobs`` has its own limit in place of ``count``.
    pairing:
        For a SimPairedReservoir: a function that makes (x, y) from two batches of ``TimeStep``, the
        earlier and the later ones.
    lockstep:
        With an ``InputSampler``: choose an input when the workers have trained and reported every
        full batch of what had arrived, so that two runs choose the same inputs (with one worker,
        one simulation at a time and FIFO). By default workers train on while a simulation starts,
        and the newest table is used.
    senders, address, token:
        Number of other programs that will send samples with ``SampleSender``, to this address
        (``tcp://HOST:PORT``) and with this token. By default there are none.
    senders_timeout:
        Maximum seconds to wait for senders that are not connected, counted from the start of
        training and from each time that one connects or leaves; ``None`` (default) for no limit. A
        warning names them after 10 seconds, and again.

    Raises ``ValueError`` and ``TypeError`` for other values and for incompatible combinations.
    """

    simulate: Callable[[Any], Iterable[Any]] | None = None
    inputs: Iterable[Any] | InputSampler = ()
    count: int = 1
    retries: int = 2
    timeout: float | None = None
    steps: int | Callable[[Any], int] | None = None
    jobs: Jobs | None = None
    pairing: Pairing | None = None
    lockstep: bool = False
    senders: int = 0
    address: str | None = None
    token: str | None = field(default=None, repr=False)
    senders_timeout: float | None = None

    def __post_init__(self) -> None:
        if check_count("count", self.count) > _MOST_AT_A_TIME:
            raise ValueError(
                f"count={self.count}: give at most {_MOST_AT_A_TIME}, the simulations that run at "
                "a time"
            )
        for name in ("retries", "senders"):
            check_count(name, getattr(self, name), least=0)
        for name in ("timeout", "senders_timeout"):
            seconds = getattr(self, name)
            if seconds is not None:
                check_seconds(name, seconds)
        if self.steps is not None and not callable(self.steps):
            check_count("steps", self.steps)
        check_choice("lockstep", self.lockstep, (True, False))
        self._check_jobs()
        self._check_simulate()
        self._check_senders()
        if self.pairing is not None and not callable(self.pairing):
            raise TypeError(
                f"pairing={self.pairing!r}: give a function of two batches of time steps, the "
                "earlier and the later ones, that returns (x, y)"
            )
        check_picklable(simulate=self.simulate, pairing=self.pairing)

    def write(
        self, folder: str | os.PathLike[str], *, engine: str | Engine = "auto", format: str = "npz"
    ) -> list[str]:
        """Run the simulations and write their samples to files, to train from or to validate with.

        A simulation is a task of the engine, ``count`` of which run at a time. It writes
        ``simulation-000003.npz`` with arrays ``x``, ``y`` and ``step``, the number of each sample's
        time step, when it is complete; its samples are in memory until then. ``FileDataset`` reads
        these files. ``simulations.jsonl`` has a line for each simulation that has ended.

        A call for the same folder goes on where an earlier one was stopped, and repeats simulations
        that had been given up: give the same inputs in the same order, to which others may be
        added. Failures are those of ``fit_online``, except that training sees no samples of a
        simulation that has failed.

        Parameters
        ----------
        folder:
            A folder on a file system that all nodes share; created if necessary.
        engine:
            ``"auto"`` (default), ``"serial"``, ``"local"``, ``"compss"`` or ``"ray"``, or an
            engine. ``"serial"`` runs one simulation after another, without ``timeout``.
        format:
            ``"npz"`` (default), ``"npz-compressed"``, ``"pt"`` or ``"h5"`` (needs h5py).

        Returns the names of all files in the order of the inputs; a simulation without samples has
        none. Raises ``ValueError`` for an ``InputSampler`` and senders, which need a fit, for other
        inputs or ``steps`` than those of the folder, and for a folder with other files;
        ``SimulationError`` if no simulation is complete, or if samples differ in shape or dtype;
        and ``OSError`` if a file cannot be written or another program writes to the folder.
        """
        from compss_train.online.simulation_writer import SimulationWriter  # needs pyzmq

        if self.simulate is None or self.senders:
            sending = f"senders={self.senders}" if self.senders else "jobs="
            raise ValueError(
                f"{sending} send to a fit, and write has none; give simulate= and inputs= alone"
            )
        if self.sampler is not None:
            raise ValueError(
                f"inputs= is a {type(self.sampler).__name__}, which chooses inputs while a network "
                "learns; give a list or an iterator"
            )
        if not isinstance(folder, str | os.PathLike) or "://" in os.fspath(folder):
            raise ValueError(
                f"folder={folder!r}: give the path of a folder on a file system that all nodes "
                "share"
            )
        writer = SimulationWriter(
            simulate=self.simulate,
            inputs=self.given_inputs,
            count=self.slots,
            retries=self.retries,
            timeout=self.timeout,
            steps_of=self.steps_of,
            resources=self.resources,
            folder=Path(folder).absolute(),
            format=format,
        )
        return writer.write(engine)

    @property
    def runs_inputs(self) -> bool:
        """Whether there are simulations, of one input each, as tasks or as jobs."""
        return self.simulate is not None or self.jobs is not None

    @property
    def sampler(self) -> InputSampler | None:
        """What chooses the inputs, unless they are given."""
        return self.inputs if isinstance(self.inputs, InputSampler) else None

    @property
    def given_inputs(self) -> Iterable[Any]:
        """The inputs, unless a sampler chooses them; none if only other programs send."""
        return iter(()) if isinstance(self.inputs, InputSampler) else self.inputs

    def steps_of(self, value: Any) -> int | None:
        """Return the number of steps of the simulation of an input, if that is known.

        Raises ``ValueError`` if the function returns none.
        """
        if self.steps is None:
            return None
        steps = self.steps(value) if callable(self.steps) else self.steps
        return check_count("steps", steps)

    @property
    def resources(self) -> Resources:
        """The resources of one simulation."""
        cpus = self.simulate.cpus if isinstance(self.simulate, Solver) else 1
        return Resources(cpus=cpus, own_process=True)

    def first_sender(self, buffer: BufferSpec) -> int:
        """Return the number of the first sender's stream, above those of all simulations."""
        inputs = self.given_inputs
        if isinstance(inputs, Sized):
            return len(inputs)
        return UNCOUNTED if buffer.sweep_size is None else max(0, buffer.sweep_size - self.senders)

    @property
    def slots(self) -> int:
        """How many tasks run at the same time, if the engine can run as many."""
        if self.simulate is None:
            return 0
        inputs = self.inputs
        if isinstance(inputs, InputSampler) or not isinstance(inputs, Sized):
            return self.count
        return min(self.count, len(inputs))

    @property
    def host(self) -> str | None:
        """The host of the address for senders, or ``None``."""
        return None if self.address is None else host_and_port(self.address)[0]

    def _check_jobs(self) -> None:
        if self.jobs is None:
            return
        if not isinstance(self.jobs, Jobs):
            raise TypeError(f"jobs={self.jobs!r}: give Jobs(submit=..., alive=..., cancel=...)")
        if self.simulate is not None:
            raise ValueError(
                f"simulate={self.simulate!r} with jobs=: what a job runs is in the script that "
                "Jobs submits; give one of the two"
            )
        if self.address is None:
            raise ValueError(
                "jobs= needs an address= to send to, such as tcp://node1:5555, and token="
            )
        if self.steps is not None:
            raise ValueError(
                f"steps={self.steps!r} with jobs=: the fit knows samples of jobs, not their steps; "
                "let the program of a job fail if it ends too early"
            )
        if self.count != 1:
            raise ValueError(
                f"count={self.count} with jobs=: give Jobs(at_most=...), the limit of jobs"
            )

    def _check_simulate(self) -> None:
        if self.simulate is not None and not callable(self.simulate):
            raise TypeError(
                f"simulate={self.simulate!r}: give a function of an input that "
                "yields samples (x, y)"
            )
        if not self.runs_inputs and not self.senders:
            raise ValueError(
                "simulate=None with senders=0: give simulate=, jobs= or senders=, the sources of "
                "samples"
            )
        if self.sampler is None:
            _check_inputs(self.inputs)
        if self.lockstep and self.sampler is None:
            raise ValueError(
                f"lockstep={self.lockstep!r} with inputs= of type {type(self.inputs).__name__}: "
                "only an InputSampler depends on training; leave it out"
            )
        is_empty = isinstance(self.inputs, Sized) and not len(self.inputs)
        if not self.runs_inputs and not is_empty:
            raise ValueError(
                "inputs= without simulate= or jobs=: give the function that is called with each "
                "input"
            )
        if self.runs_inputs and is_empty:
            raise ValueError("inputs= is empty: give at least one input of simulate= or jobs=")
        inputs = self.given_inputs
        if isinstance(self.simulate, Solver) and isinstance(inputs, Sized) and len(inputs):
            self.simulate.arguments(next(iter(inputs)))

    def _check_senders(self) -> None:
        if self.senders and self.address is None:
            raise ValueError(
                f"senders={self.senders} need an address= to send to, such as tcp://127.0.0.1:5555"
            )
        if self.token is not None:
            check_token(self.token)
            if self.address is None:
                raise ValueError("token= without address=: give the address that senders send to")
        if self.address is not None:
            host_and_port(self.address)
            if self.token is None:
                raise ValueError(
                    "address= needs token=, which senders present: a secret string, such as "
                    "secrets.token_urlsafe()"
                )


def _check_inputs(inputs: object) -> None:
    """Raise ``TypeError`` for what has no item for each simulation, in an order that stays."""
    if is_frame(inputs) and hasattr(inputs, "columns"):
        raise TypeError(
            f"inputs= is a {type(inputs).__name__}, whose items are its columns: give "
            "frame.to_numpy(), a row for each simulation, or a list of dicts, as of "
            'frame.to_dict("records") of pandas and frame.to_dicts() of polars'
        )
    if np.ma.is_masked(inputs):
        raise TypeError("inputs= is a masked array: leave out simulations whose input is missing")
    if not is_iterable(inputs) or isinstance(inputs, Mapping | Set | str | bytes):
        raise TypeError(
            f"inputs={inputs!r}: give a list or an iterator, one item per simulation, or an "
            "InputSampler"
        )


@dataclass(frozen=True, kw_only=True)
class OnlineOptions:
    """Options of ``DistributedTrainer.fit_online`` that its workers need, explained there."""

    buffer: BufferSpec
    batch_size: int
    merge: Merge
    """With all its options, as ``online_merge`` returns it."""
    max_batches: int | None = None
    record_every: float = 1.0
    checkpoint_every: float | None = 60.0
    pairing: Pairing | None = None
    """That of the simulations."""

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        if self.max_batches is not None:
            check_count("max_batches", self.max_batches)
        check_seconds("record_every", self.record_every)
        if self.checkpoint_every is not None:
            check_seconds("checkpoint_every", self.checkpoint_every)
        if not isinstance(self.buffer, BufferSpec):
            raise TypeError(
                f"buffer={self.buffer!r}: give a BufferSpec, such as BufferSpec('Reservoir', 4096)"
            )
        if self.buffer.pairs != (self.pairing is not None):
            raise ValueError(
                f"pairing={self.pairing!r} with a {self.buffer.kind}: a SimPairedReservoir "
                "requires pairing=, a function of two batches of time steps that returns (x, y); "
                "other buffers do not accept it"
            )
        self.buffer.check(self.batch_size)
        try:
            check_fits(self.buffer.capacity)
        except MemoryError as error:
            raise ValueError(f"buffer: {error}") from None


def pairing_of(simulations: object) -> Pairing | None:
    """Return the pairing of simulations; raise ``TypeError`` for anything else."""
    if not isinstance(simulations, Simulations):
        raise TypeError(
            f"simulations={simulations!r}: give Simulations(simulate, inputs, ...), or "
            "Simulations(senders=..., address=..., token=...) if only other programs send"
        )
    return simulations.pairing


def online_merge(merge: MergeLike) -> Merge:
    """Return the merge of an online fit, with all its options.

    Raises ``ValueError`` for options that it does not have.
    """
    chosen = Merge.of(merge)
    if chosen.kind not in (None, "parameter_server") or chosen.unit not in (None, "batches"):
        raise ValueError(
            f"merge={chosen!r}: fit_online merges through a parameter server, every few batches: "
            "give Merge(every=...), whose kind is 'parameter_server' and whose unit is 'batches'"
        )
    if callable(chosen.every):
        raise ValueError(
            f"merge={chosen!r}: fit_online has no epochs that every= could depend on; give a number"
        )
    if chosen.optimizer_state not in (None, "keep", "reset"):
        raise ValueError(
            f"optimizer_state={chosen.optimizer_state!r}: choose 'keep', which continues with the "
            "workers' optimizers of the last fit, or 'reset'"
        )
    defaults = Merge(
        "parameter_server", every=1, unit="batches", optimizer_state="keep", rule="weighted"
    )
    return chosen.with_defaults(defaults)
