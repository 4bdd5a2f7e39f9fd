"""Runs of ``compss-train fit`` that have trained, and ``load``: their networks for inference."""

import argparse
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from compss_train.cli import run_files
from compss_train.cli.run_files import training, trust
from compss_train.data import locations
from compss_train.exceptions import BadFileError
from compss_train.model import parameters, saved_state
from compss_train.model.attributes.reader import NETWORK
from compss_train.model.model_state import model_state, of_network, restore
from compss_train.trainer import DistributedTrainer
from compss_train.training import checkpoints
from compss_train.training.remote_checkpoints import local_copy


def load(
    path: str | os.PathLike[str],
    net: nn.Module | None = None,
    *,
    best: bool = False,
    trust: bool = False,
) -> nn.Module:
    """Return a trained network in evaluation mode, on the CPU, for inference in another program.

    Nothing is unpickled, and checksums are verified. A ``transform`` of ``build`` is not part of
    the network.

    Parameters
    ----------
    path:
        A file of ``trainer.save`` (``.safetensors``, ``.npz``) or of a state_dict (``.pt``,
        ``.pth``), or the folder of a ``Checkpoint``, whose newest good one is taken, also
        ``"s3://..."``; or, without ``net``, the folder of a run of ``compss-train fit``.
    net:
        A network of the same structure, which gets the parameters and is returned. ``None``
        (default) makes the network of the run, for which its modules are imported; a line on
        standard error names them.
    best:
        For a run: the parameters of its best checkpoint instead of the final ones.
    trust:
        For a run: do not name its modules, and import them also if they belong to another user.

    Raises ``ValueError`` for a network of another structure, ``BadFileError`` for a damaged file,
    and ``FileNotFoundError``.
    """
    if net is not None:
        return _load_into(net, path)
    if locations.is_remote(os.fspath(path)) or Path(path).is_file():
        raise TypeError(
            f"load({Path(path).name!r}) needs the network, too: give load(path, net); only a "
            "folder that compss-train fit wrote on this machine names its network"
        )
    with torch.random.fork_rng(devices=()):  # a run seeds torch before it makes its network
        options = argparse.Namespace(
            run=Path(path), settings=(), trust=trust, best=best, averaged=False
        )
        with open_run(options) as (_, trainer):
            return trainer.model()


def _load_into(net: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Return ``net`` with the parameters, and the state, of a file or of a checkpoint folder."""
    with local_copy(path) as local:
        if local.is_dir():
            _, content = checkpoints.read_latest_checkpoint(local, warn=True)
            arrays = parameters.NamedArrays(content["parameters"])
            for worker in content["workers"][:1]:
                arrays.state = model_state(worker["module_buffers"], worker.get("attributes"))
        else:
            arrays = parameters.load(local)
        parameters.load_into(net, arrays)
    if arrays.state is not None:
        restore(of_network(arrays.state, net), net, {NETWORK: net})
    return net.eval()


@contextmanager
def open_run(
    options: argparse.Namespace,
) -> Iterator[tuple[run_files.RunFile, DistributedTrainer]]:
    """Yield the file of the run in a folder, and its trainer with the final or best parameters.

    A killed run provides the parameters of its last checkpoint. In the block, the current folder is
    the run's home. Unless the run is trusted, the modules that its file imports are named before,
    and another user's file is an error. Raises ``RunFileError`` if the run has saved no parameters.
    """
    hint = "give the folder that compss-train fit printed at its end"
    file = run_files.read_run_file(options.run, options.settings, hint)
    trust.check_trust(file, trusted=options.trust)
    folder = run_files.RunFolder(file.path.parent)
    errors = run_files.Errors()
    with trust.working_directory(file):
        trainer = training.read_trainer(file, errors)
        errors.check(file.path)
        if options.averaged and not options.best and folder.averaged.exists():
            trainer.set_parameters(parameters.load(folder.averaged))
        elif not options.best and not options.averaged and folder.parameters.exists():
            final = parameters.load(folder.parameters)
            if folder.sha256() not in (None, saved_state.sha256_of(final)):
                state = folder.state_file.name
                reason = f"does not hold the parameters whose SHA-256 is in {state}"
                raise BadFileError(str(folder.parameters), reason)
            trainer.set_parameters(final)
        elif folder.checkpoints.is_dir():
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "fits continue")  # no fit does
                trainer.restore(folder.checkpoints, best=options.best)
            if options.averaged:
                trainer.set_parameters(trainer.get_parameters(averaged=True))
        elif options.averaged and folder.parameters.exists():
            raise run_files.RunFileError(
                f"--averaged: {folder.path} has no {folder.averaged.name}; a run keeps an average "
                "with averaging in [fit.merge]"
            )
        else:
            missing = f"no {folder.checkpoints.name}"
            if not options.best:
                missing += f" and no {folder.parameters.name}"
            raise run_files.RunFileError(
                f"{folder.path} has {missing}; has a round of this run ended?"
            )
        with trainer:
            yield file, trainer
