"""The first batch of a fit, trained in this process by ``check_fit``."""

from contextlib import suppress
from dataclasses import replace

from compss_train._utils.validation import warn_user
from compss_train.exceptions import DivergedError
from compss_train.model import devices
from compss_train.model.schedule import make_schedule
from compss_train.training import inference
from compss_train.training.rounds import FitOfEpochs
from compss_train.training.session import TrainedModel
from compss_train.worker.inference import try_collate
from compss_train.worker.state import WorkerState
from compss_train.worker.train import train_one


def try_fit(fit: FitOfEpochs) -> None:
    """Check a new copy of the learning-rate schedule, and train the first batch on a device that is here.

    For GPUs that only other nodes have this is the CPU, whose error is then a warning: some kernels need a GPU.
    """
    model, built = fit.session.model, fit.session.model.built
    if built.schedule is not None and built.lr_schedule is not None:
        spec = built.training_spec
        schedule = make_schedule(built.schedule, spec.net, spec.optimizer)
        saved = built.lr_schedule.state_dict() if fit.checkpoint is None else fit.checkpoint[1].schedule
        schedule.load_state_dict(saved)
        schedule.prepare(fit.epochs.stop, fit.options.batches_of_worker(fit.data, fit.session.num_workers))
    if not fit.data.counted:  # streams would be read whole
        return
    if not built.num_gpu or devices.accelerators():
        _train_first_batch(fit, model, devices.gpu(0) if built.num_gpu else devices.CPU)
        return
    try:
        _train_first_batch(fit, model, devices.CPU)
    except Exception as error:
        warn_user(f"no batch was tried on a GPU, as torch sees none here; on the CPU the first one fails: {error}")


def _train_first_batch(fit: FitOfEpochs, model: TrainedModel, device: str) -> None:
    """Train a copy of the model on one batch, in this process on a device; raise the errors of a fit."""
    data, options = fit.data, fit.options
    # Compiling would take long.
    spec = replace(model.built.training_spec, compile=None)
    job = inference.one_batch(spec, data)
    kept = devices.kept_random_state
    skipped_errors = [DivergedError] if spec.gradients.on_nan == "skip" else []
    for number, rows in enumerate(data.sizes):
        _, size = options.batching.bounds(rows)[0]
        work = inference.first_batch(data, number, size, name="the first batch", device=device, check_outputs=True)
        with suppress(*skipped_errors), data.locate_nan_on_error(), devices.IN_PROCESS, kept(device):
            state, values = WorkerState(None, model.seed), data.load(number)
            measured = train_one(job, model.parameters, state, work, values).measured
            inference.warn_of_problems([measured], set())
            if not measured.samples:
                continue  # a file that cannot be read and is skipped
        if spec.collate is not None:
            inputs = data.without_targets
            job, work = inference.one_batch(spec, inputs), replace(work, files=inputs.files_of([number]))
            try:
                with devices.IN_PROCESS:
                    try_collate(job, model.parameters, inputs.load(number), work)
            except Exception as error:
                warn_user(" ".join([f"predict(x) would fail: {error}.", *getattr(error, "__notes__", [])]))
        return
