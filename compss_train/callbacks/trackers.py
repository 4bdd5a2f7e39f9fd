"""Callbacks that log a fit to trackers of experiments: MLflow, W&B and TensorBoard."""

import copy
import itertools
import re
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from compss_train._utils import imports, strict_json, validation
from compss_train.reports import html
from compss_train.reports.curves import input_panels
from compss_train.reports.records import epoch_of, flatten, measured_numbers
from compss_train.training.callback import Callback
from compss_train.training.stopping import status_of
from compss_train.training.trainer_protocol import TrainerProtocol

_EVENT_FILES = "events.out.tfevents.*"
"""TensorBoard's files."""

_RATES = ("samples_per_second", "batches_per_second")
MOST_PARAMETERS = 100
"""Maximum number of settings that MLflow accepts at a time."""
MAX_VALUE = 500
"""Maximum number of characters of a setting that every MLflow version accepts."""


class _Tracker(Callback):
    """Logs the configuration at the start of a fit, and the numbers of each round as a step.

    The numbers are losses, metrics and samples/s. A fit whose history goes on from what was logged,
    as a resumed or a second fit's does, continues the run; other fits, as after another ``build``,
    have runs of their own. If the tracker fails, a warning says so once, and the fit continues
    without it; the run is ended in any case. Raises ``ModuleNotFoundError`` without ``package``,
    which is an extra of the same name.
    """

    package: ClassVar[str]

    def __init__(self, *, artifacts: bool = False) -> None:
        self._import()
        self.run_id: str | None = None
        """The tracker's id of the run, once a fit has started."""
        self._restored = False
        """Whether the run is that of the fit that is resumed."""
        self._last_logged: tuple[int, float] | None = None
        """The number of the last logged round, and when it ended, by which it is known again."""
        self._artifacts = artifacts
        self._logs = False

    def _import(self, module: str = "") -> Any:
        return imports.import_optional(
            module or self.package, extra=self.package, needed_by=type(self).__name__
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the run, which a resumed fit continues."""
        return {} if self.run_id is None else {"run": self.run_id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the run of the fit that is resumed."""
        self.run_id = state["run"]
        self._restored = True

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Start a run, or continue an earlier fit's; the tracker's errors are raised."""
        configuration = {
            part: value for part, value in trainer.configuration.items() if part != "details"
        }
        if not self._continues(trainer):
            self.run_id = None
        self._restored = False
        self.run_id = self._start(configuration, len(trainer.history))
        self._logs = True

    def _continues(self, trainer: TrainerProtocol) -> bool:
        """Return whether the history goes on from what was logged to the run."""
        if self._restored or self._last_logged is None:
            return self._restored
        number, ended = self._last_logged
        return any(
            record["round"] == number and record["ended"] == ended for record in trainer.history
        )

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Log the numbers of the round."""
        rates = {name: record[name] for name in _RATES if name in record}
        numbers = _tagged(measured_numbers(record) | rates)
        if self._logs:
            self._last_logged = record["round"], record["ended"]
            self._try("stops logging this fit", self._log, numbers, record)

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Log the final parameters and the report as files, and end the run."""
        if self._logs and self._artifacts:
            self._try(
                "did not upload the final parameters and the report", self._log_results, trainer
            )
        self._try("did not end the run", partial(self._end, succeeded=True))

    def on_exception(self, trainer: TrainerProtocol, error: BaseException) -> None:
        """End the run as failed."""
        self._try("did not end the run", partial(self._end, succeeded=False))

    def _try(self, failure: str, call: Callable[..., None], *arguments: Any) -> None:
        """Call the tracker; its first failure in a fit is a warning."""
        try:
            call(*arguments)
        except Exception as error:  # trackers raise what their transports raise
            if self._logs:
                validation.warn_user(
                    f"{type(self).__name__} {failure}: {type(error).__name__}: {error}"
                )
            self._logs = False  # but ending the run is tried nevertheless

    def _log_results(self, trainer: TrainerProtocol) -> None:
        with tempfile.TemporaryDirectory() as folder:
            trainer.save(f"{folder}/parameters.safetensors")
            with suppress(ModuleNotFoundError):  # of the extra ``report``
                page = f"{folder}/report.html"
                status = status_of(trainer.stopped)
                html.write(page, trainer.history, trainer.configuration, status=status)
            self._log_files(folder)

    def _log_files(self, folder: str) -> None:
        """Log the files in a folder, where the tracker takes files."""

    @abstractmethod
    def _start(self, configuration: dict[str, Any], rounds: int) -> str:
        """Start a run, or continue ``run_id``; return its id. ``rounds`` are in the history."""

    @abstractmethod
    def _log(self, numbers: dict[str, float], record: dict[str, Any]) -> None:
        """Log the numbers of a record."""

    @abstractmethod
    def _end(self, *, succeeded: bool) -> None:
        """End the run."""


class MLflow(_Tracker):
    """Logs to MLflow: a server or a database.

    Parameters
    ----------
    experiment:
        Name of the experiment, which is created if it does not exist.
    run_name:
        Name of the run; by default MLflow invents one.
    tracking_uri:
        Address such as ``"http://localhost:5000"`` or ``"sqlite:///mlflow.db"``; by default that of
        MLflow's own settings.
    artifacts:
        Whether the final parameters (``parameters.safetensors``) and the report become artifacts;
        true by default.

    Inside ``with mlflow.start_run():`` the fit logs to that run, and leaves it open; if that has
    another fit's rounds already, the fit has a run of its own that is nested in it. Settings are
    parameters with dotted names, such as ``build.optimizer.arguments.lr``. If a value is too long
    for MLflow, such as the text of a large network, the whole text is an artifact in ``settings``.
    """

    package: ClassVar[str] = "mlflow"

    def __init__(
        self,
        experiment: str = "compss_train",
        *,
        run_name: str | None = None,
        tracking_uri: str | None = None,
        artifacts: bool = True,
    ) -> None:
        super().__init__(artifacts=artifacts)
        self._experiment = experiment
        self._run_name = run_name
        self._uri = tracking_uri
        self._owns = True

    def _start(self, configuration: dict[str, Any], rounds: int) -> str:
        mlflow = self._import()
        self._client = mlflow.MlflowClient(self._uri)
        active = mlflow.active_run()
        active_id = None if active is None else str(active.info.run_id)
        run_id = self._run_to_continue(active_id, rounds)
        if run_id is None:
            nested = {} if active_id is None else {"mlflow.parentRunId": active_id}
            run = self._client.create_run(
                self._experiment_id(active), run_name=self._run_name, tags=nested
            )
            run_id = str(run.info.run_id)
        elif run_id != active_id:
            self._client.set_terminated(run_id, "RUNNING")
        self._owns = run_id != active_id
        known = self._client.get_run(run_id).data.params  # MLflow refuses other values
        settings = {
            name: str(value)
            for name, value in _tagged(flatten(configuration)).items()
            if value is not None and name not in known
        }
        self._log_settings(run_id, settings)
        return run_id

    def _run_to_continue(self, active_id: str | None, rounds: int) -> str | None:
        """Return the run that the fit logs to: its earlier one, or the active one; ``None``: a new.

        The active one may have another fit's rounds, which must not be mixed with this fit's.
        """
        if active_id is None:
            return self.run_id
        logged = [point.step for point in self._client.get_metric_history(active_id, "loss")]
        if self.run_id is not None and logged:
            return self.run_id
        return active_id if all(step < rounds for step in logged) else None

    def _experiment_id(self, active: Any) -> str:
        """Return the id of the experiment, which is created if it does not exist.

        A run that is nested in an active one is of the same experiment.
        """
        if active is not None:
            return str(active.info.experiment_id)
        experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment is None:
            return str(self._client.create_experiment(self._experiment))
        return str(experiment.experiment_id)

    def _log_settings(self, run_id: str, settings: Mapping[str, str]) -> None:
        """Log settings as parameters, long ones also as texts."""
        parameter = self._import().entities.Param
        parameters = [parameter(name, value[:MAX_VALUE]) for name, value in settings.items()]
        for name, value in settings.items():
            if len(value) > MAX_VALUE:
                self._client.log_text(run_id, value, f"settings/{name}.txt")
        for first in range(0, len(parameters), MOST_PARAMETERS):
            self._client.log_batch(run_id, params=parameters[first : first + MOST_PARAMETERS])

    def _log(self, numbers: dict[str, float], record: dict[str, Any]) -> None:
        metric = self._import().entities.Metric
        ended = round(1000 * record["ended"])
        numbers = {**numbers, **epoch_of(record)}
        metrics = [metric(name, value, ended, record["round"]) for name, value in numbers.items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def _log_files(self, folder: str) -> None:
        self._client.log_artifacts(self.run_id, folder)

    def _end(self, *, succeeded: bool) -> None:
        if self._owns:
            self._client.set_terminated(self.run_id, "FINISHED" if succeeded else "FAILED")


class WandB(_Tracker):
    """Logs to Weights & Biases.

    ``options`` are those of ``wandb.init``, such as ``mode="offline"`` or ``name``. If the program
    has its own run (``wandb.run``), the fit logs to that and leaves it open. With ``artifacts``,
    the final parameters and the report become an artifact of type ``model``.

    Raises ``ValueError`` at the start of a fit whose run is fixed, by the program or an ``id``, and
    has the rounds of another fit: W&B has no nested runs.
    """

    package: ClassVar[str] = "wandb"

    def __init__(
        self, project: str = "compss_train", *, artifacts: bool = True, **options: Any
    ) -> None:
        super().__init__(artifacts=artifacts)
        self._options = {"project": project, **options}

    def _start(self, configuration: dict[str, Any], rounds: int) -> str:
        wandb = self._import()
        self._owns = wandb.run is None
        again = {} if self.run_id is None else {"id": self.run_id, "resume": "allow"}
        if self._owns:
            self._check_id()
            # W&B writes the id of the run into the settings that it gets.
            self._run = wandb.init(**{**copy.deepcopy(self._options), **again})
        else:
            self._run = wandb.run
            self._check_rounds(rounds)
        self._run.config.update(configuration, allow_val_change=True)
        return str(self._run.id)

    def _check_id(self) -> None:
        """Raise ``ValueError`` if the run of an earlier fit would be that of this one, too."""
        fixed = self._options.get("id")
        if fixed is not None and self.run_id is None and self._last_logged is not None:
            raise ValueError(
                f"WandB(id={fixed!r}) is the run of an earlier fit, whose history this one does "
                "not continue: leave id= out, or make a WandB for each"
            )

    def _check_rounds(self, rounds: int) -> None:
        """Raise ``ValueError`` if the program's run has other rounds from this fit's first on."""
        if self.run_id is not None:
            return
        last, loss = map(self._run.summary.get, ("round", "loss"))
        if last is not None and last >= rounds and loss is not None:
            raise ValueError(
                f"the W&B run {self._run.id} has the rounds of another fit, up to {last}, and this "
                "one's would be mixed with them: call wandb.finish() and wandb.init() before each "
                "fit, or leave out wandb.init(), and each fit has a run of its own"
            )

    def _log(self, numbers: dict[str, float], record: dict[str, Any]) -> None:
        # A step of our own: what the program logs moves W&B's.
        values = {**numbers, **epoch_of(record)}
        self._run.define_metric("round", hidden=True)
        for name in values:
            self._run.define_metric(name, step_metric="round")
        self._run.log({**values, "round": record["round"]}, commit=True)

    def _log_files(self, folder: str) -> None:
        artifact = self._import().Artifact(f"run-{self._run.id}", "model")
        artifact.add_dir(folder)
        self._run.log_artifact(artifact)

    def _end(self, *, succeeded: bool) -> None:
        if self._owns:
            self._run.finish(exit_code=0 if succeeded else 1)


class TensorBoard(_Tracker):
    """Writes each round to a folder for ``tensorboard --logdir FOLDER``, by round and by wall time.

    Charts are named after losses, metrics (``recall/0`` for a list) and samples/s. Each worker's
    measures and seconds of training are under ``workers/``; the configuration is a text. If a
    sampler draws the inputs of simulations, ``inputs/`` has their numbers by how they were drawn,
    and at the end a picture shows where, if matplotlib is installed. A second fit continues the
    same charts; rounds that a resumed fit trains again are replaced. If the folder has the charts
    of other fits, as after another ``build``, new ones go into a folder in it, ``run-2`` and so on,
    which TensorBoard shows as runs. Raises ``OSError`` at the start of a fit if the folder cannot
    be created.
    """

    package: ClassVar[str] = "tensorboard"

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.folder = Path(folder)

    def writes_to(self) -> Path:
        """Return the folder."""
        return self.folder

    def _start(self, configuration: dict[str, Any], rounds: int) -> str:
        module = self._import("torch.utils.tensorboard")
        self.folder = self.folder.absolute()  # wherever the program is when rounds end
        folder = self._run_folder(rounds)
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = _last_writer(
            folder, partial(module.SummaryWriter, purge_step=rounds or None)
        )
        text = strict_json.dumps(configuration, indent=4)
        self._writer.add_text(
            "configuration", "".join(f"    {line}\n" for line in text.splitlines()), rounds
        )
        self._writer.flush()
        return str(folder)

    def _run_folder(self, rounds: int) -> Path:
        """Return the folder of the run: that of the fit that goes on, or one without charts.

        A fit that goes on without a known run, as with another callback, continues the last one.
        """
        if self.run_id is not None:
            nested = self.folder / Path(self.run_id).name
            return nested if _has_charts(nested) else self.folder
        folder = self.folder
        last = folder
        for number in itertools.count(2):
            if not _has_charts(folder):
                break
            last = folder
            folder = self.folder / f"run-{number}"
        return last if rounds else folder

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Add the picture of the inputs, and end the run."""
        if self._logs:
            self._try("did not draw the inputs", self._draw_inputs, list(trainer.history))
        super().on_fit_end(trainer)

    def _draw_inputs(self, history: list[dict[str, Any]]) -> None:
        with suppress(ModuleNotFoundError):  # matplotlib is in the extra ``report``
            from compss_train.reports import plots

            panels = input_panels(history)
            if panels:
                self._writer.add_figure("inputs", plots.figure_of(panels), history[-1]["round"])

    def _log(self, numbers: dict[str, float], record: dict[str, Any]) -> None:
        inputs = {
            name.replace(".", "/"): value
            for name, value in flatten(record).items()
            if name.startswith("inputs.")
        }
        numbers = numbers | inputs
        for part in record["workers"]:
            measured = _tagged(measured_numbers(part))
            if "seconds" in part:
                measured["seconds"] = part["seconds"]
            for name, value in measured.items():
                numbers[f"workers/{name}/{part['worker']}"] = value
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, record["round"], walltime=record["ended"])
        self._writer.flush()

    def _end(self, *, succeeded: bool) -> None:
        self._writer.close()


def _has_charts(folder: Path) -> bool:
    """Return whether TensorBoard would show a run in the folder itself."""
    return any(folder.glob(_EVENT_FILES))


def _tagged(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values by names that all trackers accept.

    It is ``recall/0`` for ``recall[0]``, and ``_`` for symbols.
    """
    tags = {name: name.replace("[", "/").replace("]", "") for name in values}
    return {re.sub(r"[^\w/. :-]", "_", tag): values[name] for name, tag in tags.items()}


def _last_writer(folder: Path, new_writer: Callable[[str], Any]) -> Any:
    """Return a writer to a file that TensorBoard reads after the others in the folder.

    It reads them in the order of their names, and goes back to none. Names have the second, and in
    it a number as it is, so that 10 comes before 9: then the file begins in the next second.
    """
    before = {path.name for path in folder.glob(_EVENT_FILES)}
    last_name = max(before, default="")
    while True:
        writer = new_writer(str(folder))
        (name,) = {path.name for path in folder.glob(_EVENT_FILES)} - before
        if name > last_name or _second_in(name) != _second_in(last_name):
            return writer
        writer.close()
        (folder / name).unlink()
        time.sleep(0.05)


def _second_in(name: str) -> str:
    """Return the second in the name of a file of TensorBoard's, events.out.tfevents.SECOND..."""
    return name.split(".")[3]
