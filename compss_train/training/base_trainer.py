"""``BaseTrainer``: evaluates a model and predicts with it, in the session of an engine."""

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, Self

from numpy.typing import NDArray
from torch import nn

from compss_train._utils.validation import check_count
from compss_train.engines import Ref
from compss_train.exceptions import BadFileError, EngineClosedError
from compss_train.model import parameters as params
from compss_train.model.export import export
from compss_train.model.network_copies import copy_network
from compss_train.model.parameters import Parameters
from compss_train.training import worker
from compss_train.training.build_arguments import BuildArguments
from compss_train.training.building import BuildableTrainer
from compss_train.training.data_source import DataSource, as_data_source
from compss_train.training.session import Session
from compss_train.training.task_submission import (
    Inference,
    warn_of_random_transform,
    warn_of_skipped_files,
)
from compss_train.training.training_state import TrainingState


class BaseTrainer(BuildableTrainer):
    """Evaluates a model and predicts with it on many workers; subclasses train it.

    ``DistributedTrainer`` documents the arguments.
    """

    def evaluate(self, x: Any, y: Any = None, *, batch_size: int | None = None) -> dict[str, Any]:
        """Return ``{"loss": ..., "<metric>": ...}`` over all samples with the global parameters.

        ``x`` and ``y`` are as in ``fit``. ``batch_size`` is that of a ``DataLoader``, or else 1024, by default.
        """
        built = self._require_built()
        built.training_spec.check_evaluable()
        self._require_workers("evaluate")
        data = as_data_source(x, y, self.num_workers, floats=built.training_spec.float_dtype)
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

    def predict(self, x: Any, *, batch_size: int | None = None) -> Any:
        """Return the outputs for all samples in order, with the global parameters.

        An array of shape (samples, ...), or tuples, lists and dicts of such arrays where the network returns them;
        a list of arrays, one a sample, if sequences of batches were padded to different lengths. ``x`` and
        ``batch_size`` are as in ``evaluate``; targets in data sets are left out.
        """
        built = self._require_built()
        built.training_spec.check_forward()
        self._require_workers("predict")
        data = as_data_source(x, None, self.num_workers, targets=False, floats=built.training_spec.float_dtype)
        with self._inference(built, data, batch_size) as (inference, parameters):
            return inference.predict(parameters)

    def model(self, *, averaged: bool = False) -> nn.Module:
        """Return a new copy of the network with the global parameters, on the CPU.

        With ``averaged=True`` these are the average that a fit with ``Merge(averaging=...)`` keeps; ``ValueError``
        if the last fit kept none.
        """
        net = copy_network(self._require_built().training_spec.net)
        params.load_into(net, self._current_average() if averaged else self._current())
        return net

    def _current_average(self) -> Parameters:
        running = None if self._active is None else self._active.running
        averaged = self._averaged if running is None else running.averaged()
        if averaged is None:
            raise ValueError(
                'the last fit kept no average of the parameters; give fit merge=Merge(averaging="ema")'
            )
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

    def _require_workers(self, method: str) -> None:
        running = None if self._active is None else self._active.running
        if running is not None and running.occupies_workers:
            raise RuntimeError(
                f"{method} was called during fit_online, whose tasks use all processes; give fit_online "
                "validation_data=, or use model() in this process"
            )

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
                    state=self._saved_state,
                    seed=self.seed,
                    threads=self.threads,
                    num_gpu=built.num_gpu,
                )
                self._saved_state = TrainingState()
            yield self._session
        except BaseException as error:
            if fitting or not isinstance(error, Exception) or isinstance(error, EngineClosedError):
                self._end(kill=True)
            raise

    @contextmanager
    def _inference(
        self, built: BuildArguments, data: DataSource, batch_size: int | None
    ) -> Iterator[tuple[Inference, Ref]]:
        if batch_size is not None:
            check_count("batch_size", batch_size)
        with (
            self._working(built) as session,
            session.inference_with(self._current(), data, batch_size) as published,
        ):
            yield published
