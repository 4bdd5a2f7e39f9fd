"""``BufferSpec``: the description from which each worker creates its buffer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from numbers import Integral
from typing import Self

from compss_train._utils.validation import check_count, suggestion
from compss_train.buffers.base import Buffer
from compss_train.buffers.kinds import FIFO, FIRO, BatchReservoir, Reservoir
from compss_train.buffers.paired import SimPairedReservoir


@dataclass(frozen=True)
class BufferSpec:
    """Description of the buffer that each worker uses in ``fit`` or ``fit_online``.

    Parameters
    ----------
    kind:
        ``"FIFO"``, ``"FIRO"``, ``"Reservoir"``, ``"BatchReservoir"`` or, in ``fit_online`` only,
        ``"SimPairedReservoir"``, in any case.
    capacity:
        Maximum number of samples held.
    threshold:
        Number of samples that the buffer must hold before a batch is drawn, at most the capacity;
        half of it by default. FIFO has none.
    sweep_size, nb_time_steps:
        Required by SimPairedReservoir only: number of simulations, and number of time steps of
        each.
    passes:
        For FIRO only: above 1, a worker first puts all its samples of an epoch, which ``capacity``
        must hold, and then draws each of them that many times, in passes over all. With 1 (default)
        it draws each once, while others arrive.
    max_repeats:
        For reservoirs in ``fit_online`` only: a worker trains on at most this many times as many
        samples as it has received, a pair counting as two, and waits rather than repeat more. When
        all simulations have ended, no limit holds. ``None`` (default) for no limit.

    Raises ``ValueError`` for an unknown kind, a capacity below 1, a threshold above the capacity,
    and for parameters that are missing or that the kind does not use.
    """

    kind: str
    capacity: int
    threshold: int | None = None
    sweep_size: int | None = None
    nb_time_steps: int | None = None
    passes: int = 1
    max_repeats: int | None = None

    def __post_init__(self) -> None:
        names = {name.lower(): name for name in _KINDS}
        if not isinstance(self.kind, str) or self.kind.lower() not in names:
            similar = suggestion(self.kind, _KINDS) if isinstance(self.kind, str) else ""
            raise ValueError(f"kind={self.kind!r}: choose one of {', '.join(_KINDS)}{similar}")
        object.__setattr__(self, "kind", names[self.kind.lower()])
        check_count("capacity", self.capacity, least=2 if self.pairs else 1)
        options = signature(_KINDS[self.kind]).parameters
        for name, least in _LEAST.items():
            value = getattr(self, name)
            default = getattr(BufferSpec, name)
            if value is not None and not isinstance(value, Integral):
                check_count(name, value, least)
            if name not in options and value != default:
                raise ValueError(f"{name}={value}: a {self.kind} has no {name}; remove it")
            if name in options and name not in ("threshold", "max_repeats") and value is None:
                raise ValueError(f"a {self.kind} requires {name}=, which was not given")
            if value is not None:
                check_count(name, value, least)
        self._check_threshold()

    def _check_threshold(self) -> None:
        """Raise ``ValueError`` unless the threshold can be reached."""
        if self.sweep_size is not None and self.nb_time_steps is not None:
            samples = self.sweep_size * self.nb_time_steps
            if self.needed > samples:
                raise ValueError(
                    f"sweep_size={self.sweep_size}, nb_time_steps={self.nb_time_steps}: a "
                    f"threshold of {self.needed} samples is never reached; give "
                    f"threshold={samples} or less"
                )
        if self.needed > self.capacity:
            raise ValueError(
                f"threshold={self.threshold}: give an integer from 0 to "
                f"{self.capacity}, the capacity"
            )

    @property
    def pairs(self) -> bool:
        """Whether the buffer returns pairs of time steps."""
        return self.kind == "SimPairedReservoir"

    @property
    def needed(self) -> int:
        """The threshold, or its default; 0 for a FIFO."""
        if self.kind == "FIFO":
            return 0
        return self.capacity // 2 if self.threshold is None else self.threshold

    @property
    def draws_in_step(self) -> bool:
        """Whether draws follow the counts of puts, as all samples are returned equally often."""
        return self.kind in ("FIFO", "FIRO")

    def check(self, batch_size: int) -> None:
        """Raise ``ValueError`` if batches of this size can never be available."""
        if batch_size > self.capacity:
            raise ValueError(
                f"a batch of {batch_size} samples cannot come from a {self.kind} of capacity "
                f"{self.capacity}: give a larger capacity= or a smaller batch_size="
            )

    def check_samples(self, samples: int) -> None:
        """Raise ``ValueError`` if a worker's samples of an epoch must fit, but do not."""
        if self.passes > 1 and samples > self.capacity:
            raise ValueError(
                f"passes={self.passes}: a worker's buffer must hold all its samples of an epoch, "
                f"up to {samples}, and has capacity={self.capacity}; give capacity={samples}, "
                "use more workers, or remove passes"
            )

    def put_counts(self, sizes: Sequence[int]) -> list[int]:
        """Return how many samples have been put at each draw of an epoch's batches, by ``sizes``.

        The first batch is drawn as soon as the threshold is reached; then two samples are put for
        each one drawn until the buffer is full, and one for each one afterwards. The buffer's
        contents at a draw, and therefore the draw, are reproducible. With several passes, all
        samples are put before the first draw.
        """
        total = sum(sizes)
        if self.passes > 1:
            return [total] * len(sizes) * self.passes
        put = 0
        got = 0
        counts = list[int]()
        for size in sizes:
            wanted = put + 2 * size if got else max(self.needed, size)
            put = min(total, got + self.capacity, wanted)
            counts.append(put)
            got += size
        return counts

    def limited(self, samples: int, batch_size: int) -> Self:
        """Return a description whose capacity is at most what ``samples`` samples can fill."""
        threshold = None if self.kind == "FIFO" else self.needed
        capacity = min(self.capacity, max(samples, self.needed + batch_size))
        return replace(self, capacity=capacity, threshold=threshold)

    def make(self, batch_size: int, seed: int, *, pin_memory: bool = False) -> Buffer:
        """Return a new, empty buffer."""
        values = {**vars(self), "threshold": self.needed, "batch_size": batch_size, "seed": seed}
        kind = _KINDS[self.kind]
        options = {name: values[name] for name in signature(kind).parameters if name in values}
        return kind(**options, pin_memory=pin_memory)


_LEAST = {"threshold": 0, "sweep_size": 1, "nb_time_steps": 2, "passes": 1, "max_repeats": 1}
"""The least value of each option that some kinds do not have."""

_KINDS: dict[str, Callable[..., Buffer]] = {
    kind.__name__: kind for kind in (FIFO, FIRO, Reservoir, BatchReservoir, SimPairedReservoir)
}
