"""Sources of the program's modules in a Ray cluster, whose head keeps them."""

from collections.abc import Sequence
from functools import cached_property
from types import ModuleType

import ray

from compss_train._utils import private_names
from compss_train.engines import sources, watch


def send_sources(modules: Sequence[str | ModuleType] = ()) -> None:
    """Let the processes of this program find the modules beside its main file, and ``modules``.

    The head of the cluster keeps their sources until ``forget_sources``.
    """
    packed = sources.packed_sources(sources.main_file(), modules)
    if packed:
        private_names.keep_in_cluster(_key(), packed)


def forget_sources() -> None:
    """Let the cluster drop the sources of this program."""
    private_names.drop_from_cluster(_key())


def _key() -> str:
    return f"compss_train sources {ray.get_runtime_context().get_job_id()}"


class KeptModules(sources.SentModules):
    """Imports what the head keeps, which is asked when a module is missing."""

    @cached_property
    def packed(self) -> bytes:
        """The sources of this process's program."""
        return private_names.kept_in_cluster(_key()) or b""

    def say(self, message: str) -> None:
        """Print it: Ray shows the program's user what its processes print."""
        watch.say(message)
